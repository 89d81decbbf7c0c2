// flock(2), which Node.js does not offer: the lock that Python's huggingface_hub takes on a blob that it downloads. The
// system lets go of it when the descriptor is closed or its process ends, however that comes about.
#include <sys/file.h>

#include <cerrno>
#include <cstring>

#include "addon/handles.h"

namespace lpq::addon {

Napi::Value try_lock_js(const Napi::CallbackInfo& info) {
  const int fd = info[0].ToNumber().Int32Value();
  int rc;
  do {
    rc = flock(fd, LOCK_EX | LOCK_NB);
  } while (rc != 0 && errno == EINTR);
  if (rc == 0) return Napi::String::New(info.Env(), "held");
  if (errno == EWOULDBLOCK) return Napi::String::New(info.Env(), "busy");
  // File systems without locks say so in several ways.
  if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL)
    return Napi::String::New(info.Env(), "unsupported");
  throw to_js(info.Env(), "LPQ_NATIVE_FILE", std::strerror(errno));
}

}  // namespace lpq::addon
