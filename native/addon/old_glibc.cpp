// What lets a prebuilt addon load where glibc is older than the one that it was linked with (-DLPQ_PREBUILT=ON, down
// to 2.28). Functions that moved to another library, or got a new version without another meaning, are bound to the
// version that every glibc has; the linker sends calls of NAME to __wrap_NAME (LPQ_WRAPPED of CMakeLists.txt).
#if defined(LPQ_PREBUILT)

#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>

#if defined(__x86_64__)
#define LPQ_OLDEST "GLIBC_2.2.5"
constexpr int STAT_VERSION = 1;
#elif defined(__aarch64__)
#define LPQ_OLDEST "GLIBC_2.17"
constexpr int STAT_VERSION = 0;
#else
#error "no prebuilt addon for this architecture"
#endif

#define LPQ_OLD(name) __asm__(".symver lpq_old_" #name "," #name "@" LPQ_OLDEST)

LPQ_OLD(pthread_create);
LPQ_OLD(pthread_join);
LPQ_OLD(pthread_detach);
LPQ_OLD(pthread_once);
LPQ_OLD(dlopen);
LPQ_OLD(dlsym);
LPQ_OLD(dlclose);
LPQ_OLD(dlerror);
LPQ_OLD(dladdr);
LPQ_OLD(exp);
LPQ_OLD(log);
LPQ_OLD(__fxstat);

extern "C" {
int lpq_old_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int lpq_old_pthread_join(pthread_t, void**);
int lpq_old_pthread_detach(pthread_t);
int lpq_old_pthread_once(pthread_once_t*, void (*)());
void* lpq_old_dlopen(const char*, int);
void* lpq_old_dlsym(void*, const char*);
int lpq_old_dlclose(void*);
char* lpq_old_dlerror();
int lpq_old_dladdr(const void*, Dl_info*);
double lpq_old_exp(double);
double lpq_old_log(double);
int lpq_old___fxstat(int, int, struct stat*);

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attr, void* (*start)(void*), void* argument) {
  return lpq_old_pthread_create(thread, attr, start, argument);
}
int __wrap_pthread_join(pthread_t thread, void** result) { return lpq_old_pthread_join(thread, result); }
int __wrap_pthread_detach(pthread_t thread) { return lpq_old_pthread_detach(thread); }
int __wrap_pthread_once(pthread_once_t* once, void (*init)()) { return lpq_old_pthread_once(once, init); }
void* __wrap_dlopen(const char* file, int mode) { return lpq_old_dlopen(file, mode); }
void* __wrap_dlsym(void* handle, const char* name) { return lpq_old_dlsym(handle, name); }
int __wrap_dlclose(void* handle) { return lpq_old_dlclose(handle); }
char* __wrap_dlerror() { return lpq_old_dlerror(); }
int __wrap_dladdr(const void* address, Dl_info* info) { return lpq_old_dladdr(address, info); }
// Since 2.28 both versions are one implementation; the older sets errno itself.
double __wrap_exp(double x) { return lpq_old_exp(x); }
double __wrap_log(double x) { return lpq_old_log(x); }
// A function of its own since 2.33; struct stat and struct stat64 are one on 64-bit machines.
int __wrap_fstat(int file, struct stat* out) { return lpq_old___fxstat(STAT_VERSION, file, out); }
int __wrap_fstat64(int file, struct stat* out) { return lpq_old___fxstat(STAT_VERSION, file, out); }

// Since 2.32; libstdc++ counts references without atomics where it is true.
char __libc_single_threaded = 0;
}

#endif
