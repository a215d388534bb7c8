// Connects queue pairs by iWARP, whose TCP connections the connection manager (librdmacm) makes.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "transport/verbs/endpoint/verbs_api.h"

namespace jaxring::verbs {

class Endpoint;

class CmConnector {
 public:
  // Binds to the endpoint's address; if it listens, it can be dialled from now on. Throws std::runtime_error.
  CmConnector(Endpoint* endpoint, bool listening);
  ~CmConnector();
  CmConnector(const CmConnector&) = delete;

  Context* context() const { return ids_.front()->context; }
  // Makes and connects all queue pairs. The peer's offer is known. Throws std::runtime_error.
  void Connect(double timeout_s);
  void DestroyQueuePairs();

 private:
  using Clock = std::chrono::steady_clock;
  // What the dialling peer sends.
  struct Introduction {
    uint64_t token;
    uint32_t queue_pair;
  };
  void Resolve(CmId* id, sockaddr* to, Clock::time_point until);
  void Dial(int queue_pair, Clock::time_point until);
  void Answer(Clock::time_point until);
  void MakeQueuePair(CmId* id, int queue_pair);
  // The next event, and the next event of that type; any other one is an error.
  CmEvent* Next(const char* what, Clock::time_point until);
  CmEvent* Await(int type, const char* what, Clock::time_point until);
  CmId* NewId();
  void Check(int result, const char* what) const;
  [[noreturn]] void Throw(const std::string& what) const;

  Endpoint* endpoint_;
  const CmApi* api_;
  const bool listening_;
  CmChannel* channel_ = nullptr;
  std::vector<CmId*> ids_;        // the first one is bound to our address: the listener, or the first that dials
  std::vector<CmId*> connected_;  // by queue pair; those that have one
};

}  // namespace jaxring::verbs
