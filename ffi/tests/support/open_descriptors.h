// A number and descriptors over a connection between processes.
#pragma once

#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "tests/support/check.h"

namespace jaxring::test {

inline void SendDescriptors(int to, int number, const std::vector<int>& descriptors) {
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  iovec part{&number, sizeof number};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  CHECK(sendmsg(to, &message, MSG_NOSIGNAL) == sizeof number);
}

// Empty if the other end is closed.
inline std::vector<int> ReceiveDescriptors(int from, int* number, size_t count) {
  std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
  iovec part{number, sizeof *number};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != sizeof *number) return {};
  std::vector<int> descriptors(count);
  CHECK_EQ(CMSG_FIRSTHDR(&message)->cmsg_len, CMSG_LEN(count * sizeof(int)));
  std::memcpy(descriptors.data(), CMSG_DATA(CMSG_FIRSTHDR(&message)), count * sizeof(int));
  return descriptors;
}

}  // namespace jaxring::test
