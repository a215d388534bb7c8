#include "network/peers/peer.h"

#include <cstdio>

namespace jaxring {

std::string Doing(const std::vector<Activity>& activities, Clock::duration since) {
  std::string text;
  for (const Activity& activity : activities) {
    char age[32];
    std::snprintf(age, sizeof age, "%.1f s",
                  std::chrono::duration<double>(std::chrono::milliseconds(activity.age_ms) + since).count());
    text += text.empty() ? "" : " and ";
    if (activity.running) {
      text.append("in ").append(activity.what).append(", for ").append(age);
    } else {
      text.append("between operations, ").append(age).append(" after the end of ").append(activity.what);
    }
  }
  return text.empty() ? "before its first operation" : text;
}

}  // namespace jaxring
