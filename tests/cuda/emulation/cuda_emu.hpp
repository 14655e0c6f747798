// cuda_emu.hpp - run CUDA C++ kernels on the CPU for tests (g++ or clang++, C++17).
// Every CUDA thread of a block is a fiber; fibers switch at __syncthreads() and at warp
// intrinsics. Nothing here is timing-accurate.
//   -DCUEMU_WARP=64  emulate AMD wave64     -DCUEMU_OPENMP  run blocks in parallel (faster, but no
//   poisoned or red-zoned __shared__ arrays, and a block order that differs from run to run)
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
#include <numeric>
#include <algorithm>
#include <mutex>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#ifndef CUEMU_UCONTEXT                                      // force the portable switch: a shuffle costs 15x more
#define CUEMU_ASM 1
#endif
#endif
#include <ucontext.h>
#ifndef CUEMU_WARP
#define CUEMU_WARP 32
#endif
#define CUEMU_FULL (~0ull>>(64-CUEMU_WARP))
#if defined(__SANITIZE_ADDRESS__)
#define CUEMU_ASAN 1
extern "C" void __sanitizer_start_switch_fiber(void**, const void*, size_t);
extern "C" void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
#endif
#if defined(__SANITIZE_THREAD__)
#define CUEMU_TSAN 1
extern "C" { void* __tsan_create_fiber(unsigned); void __tsan_switch_to_fiber(void*, unsigned);
  void* __tsan_get_current_fiber(); void __tsan_acquire(void*); void __tsan_release(void*); }
#endif

#ifdef CUEMU_TSAN                                          // the race checker must see the kernel, not this file
#define CUEMU_RT __attribute__((no_sanitize_thread)) inline
#else
#define CUEMU_RT inline
#endif

// ---- language surface -------------------------------------------------------------------
#define __CUDA_EMU__ 1
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __managed__
#ifdef CUEMU_OPENMP
#define __shared__ static thread_local                      // blocks run in parallel: one copy per OS thread
#elif defined(CUEMU_ASAN)
#define __shared__ static                                   // red zones around each array
#else
#define __shared__ static __attribute__((section("cuemu_shared")))  // one section, so that it can be poisoned
extern "C" char __start_cuemu_shared[] __attribute__((weak)), __stop_cuemu_shared[] __attribute__((weak));
#endif
// "extern __shared__ T name[];" is rewritten by the loader to CUEMU_DYN_SHARED(T, name)
#define CUEMU_DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(cuemu::cur->blk->dyn)
struct dim3 { unsigned x, y, z; constexpr dim3(unsigned a=1, unsigned b=1, unsigned c=1):x(a),y(b),z(c){} };
struct uint3 { unsigned x, y, z; };
#define CUEMU_VEC(T,N) struct __align__(2*sizeof(T)) N##2 { T x, y; }; struct N##3 { T x, y, z; }; \
  struct __align__(4*sizeof(T)) N##4 { T x, y, z, w; }; \
  inline N##2 make_##N##2(T x,T y){return {x,y};} inline N##3 make_##N##3(T x,T y,T z){return {x,y,z};} \
  inline N##4 make_##N##4(T x,T y,T z,T w){return {x,y,z,w};}
CUEMU_VEC(float,float) CUEMU_VEC(int,int)
struct __align__(8) uint2 { unsigned x, y; }; struct __align__(16) uint4 { unsigned x,y,z,w; };
inline uint2 make_uint2(unsigned x,unsigned y){return {x,y};}

namespace cuemu {
enum State : int { RUN, BAR, WARP, DONE };
enum Op : int { SHFL, BALLOT, SYNCW };
struct Block;
struct Fiber {
  void* sp=nullptr; uint3 tid{}; unsigned lin=0; Block* blk=nullptr; State st=DONE; int site=0, op=0, src=0;
  int pred=0; uint64_t mask=0, val=0, res=0; char* stack=nullptr;
  void *fake=nullptr, *tsan=nullptr;
#ifndef CUEMU_ASM
  ucontext_t uc;
#endif
};
struct Block { uint3 bid; dim3 bdim, gdim; void (*body)(void*); void* args; char* dyn; unsigned n, live, nbar; int count;
  Fiber* f; std::string err; void* main_sp=nullptr; void* main_fake=nullptr; const void* main_bot=nullptr; size_t main_sz=0;
  uint64_t arrived[32]={}, exited[32]={};                   // one bit per lane, per warp
  void* main_tsan=nullptr; uint64_t switches=0, sync_end=0, sync_bar[2]={}; unsigned gen=0;
#ifndef CUEMU_ASM
  ucontext_t main_uc;
#endif
};
#if defined(CUEMU_ASAN) || defined(CUEMU_TSAN)
constexpr size_t STACK = 256<<10;
#else
constexpr size_t STACK = 64<<10;
#endif
inline thread_local Fiber* cur = nullptr;

// ---- context switch ---------------------------------------------------------------------
#ifdef CUEMU_ASM
extern "C" void cuemu_switch(void** save, void* to);
asm(".text\n.weak cuemu_switch\n.type cuemu_switch,@function\ncuemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\npopq %rcx\njmp *%rcx\n.size cuemu_switch,.-cuemu_switch\n");
#endif
CUEMU_RT void to_main(Fiber* f, bool last=false) {           // called on the fiber
  Block* b = f->blk; (void)last;
#ifdef CUEMU_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &f->fake, b->main_bot, b->main_sz);
#endif
#ifdef CUEMU_TSAN
  __tsan_switch_to_fiber(b->main_tsan, 1);                  // 1 = no happens-before edge
#endif
#ifdef CUEMU_ASM
  cuemu_switch(&f->sp, b->main_sp);
#else
  swapcontext(&f->uc, &b->main_uc);
#endif
#ifdef CUEMU_ASAN
  __sanitizer_finish_switch_fiber(f->fake, nullptr, nullptr);
#endif
}
CUEMU_RT void warp_check(Block* b, unsigned w);
CUEMU_RT void fiber_main() {
  Fiber* f = cur; Block* b = f->blk;
#ifdef CUEMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &b->main_bot, &b->main_sz);
#endif
#ifdef CUEMU_TSAN
  __tsan_acquire(b);
#endif
  b->body(b->args);
#ifdef CUEMU_TSAN
  __tsan_release(&b->sync_end);
#endif
  f->st = DONE; b->live--; b->exited[f->lin/CUEMU_WARP] |= 1ull << f->lin%CUEMU_WARP; warp_check(b, f->lin / CUEMU_WARP);
  to_main(f, true); abort();
}
CUEMU_RT void resume(Fiber* f) {                              // called on the scheduler
  Block* b = f->blk; cur = f; b->switches++;
#ifdef CUEMU_ASAN
  __sanitizer_start_switch_fiber(&b->main_fake, f->stack, STACK);
#endif
#ifdef CUEMU_TSAN
  __tsan_switch_to_fiber(f->tsan, 1);
#endif
#ifdef CUEMU_ASM
  cuemu_switch(&b->main_sp, f->sp);
#else
  swapcontext(&b->main_uc, &f->uc);
#endif
#ifdef CUEMU_ASAN
  __sanitizer_finish_switch_fiber(b->main_fake, nullptr, nullptr);
#endif
}
CUEMU_RT void prepare(Fiber* f) {
  if (!f->stack) {
    f->stack = (char*)mmap(nullptr, STACK, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS|MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED) { perror("cuemu: mmap"); abort(); }
    memset(f->stack, 0x5a, 64);                            // overflow canary
#ifdef CUEMU_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
  }
#ifdef CUEMU_ASM
  void** top = (void**)(f->stack + STACK - f->lin%61*192);  // coloured: tops must not share cache sets
  *--top = nullptr; *--top = (void*)fiber_main;
  for (int i=0;i<6;i++) *--top = nullptr;
  f->sp = top;
#else
  getcontext(&f->uc); f->uc.uc_stack.ss_sp=f->stack; f->uc.uc_stack.ss_size=STACK; f->uc.uc_link=nullptr;
  makecontext(&f->uc, (void(*)())fiber_main, 0);
#endif
}
[[noreturn]] CUEMU_RT void die(Fiber* f, const std::string& m) {  // abandon the launch, report to the host
  if (f->blk->err.empty()) f->blk->err = m + " (thread " + std::to_string(f->lin) + ", line " + std::to_string(f->site) + ")";
  for (;;) to_main(f);
}

// ---- barrier and warp collectives ---------------------------------------------------------
CUEMU_RT int barrier(int pred, int site) {
  Fiber* f = cur; Block* b = f->blk; f->pred = pred; f->site = site; f->st = BAR; b->nbar++;
#ifdef CUEMU_TSAN
  void* s = &b->sync_bar[b->gen&1]; __tsan_release(s); to_main(f); __tsan_acquire(s);
#else
  to_main(f);
#endif
  return b->count;
}
CUEMU_RT void warp_check(Block* b, unsigned w) {              // complete each collective whose lanes are all here
  Fiber* l = b->f + w*CUEMU_WARP; unsigned nl = std::min<unsigned>(CUEMU_WARP, b->n - w*CUEMU_WARP);
  const uint64_t here = nl==64 ? ~0ull : (1ull<<nl)-1;
  for (uint64_t todo = b->arrived[w]; todo;) {
    Fiber* a = l + __builtin_ctzll(todo); const uint64_t m = a->mask & here & ~b->exited[w]; todo &= todo-1;
    if (m & ~b->arrived[w]) continue;
    uint64_t vote = 0; bool same = true;
    for (uint64_t r=m; r; r&=r-1) { Fiber* f = l + __builtin_ctzll(r);
      same = same && f->mask==a->mask && f->op==a->op && f->site==a->site; vote |= (uint64_t)(f->pred!=0) << (f-l); }
    if (!same) continue;                                    // ends as a reported deadlock
    for (uint64_t r=m; r; r&=r-1) { Fiber* f = l + __builtin_ctzll(r);
      f->res = f->op!=SHFL ? vote : (m>>(f->src&63)&1) ? l[f->src].val : 0x7fc0dead7fc0deadull; }  // undefined: NaN
    for (uint64_t r=m; r; r&=r-1) l[__builtin_ctzll(r)].st = RUN;
    b->arrived[w] &= ~m; todo &= ~m;
  }
}
CUEMU_RT uint64_t collective(Op op, uint64_t mask, uint64_t val, int src, int pred, int site) {
  Fiber* f = cur; Block* b = f->blk; unsigned lane = f->lin % CUEMU_WARP, w = f->lin / CUEMU_WARP;
  f->site = site; f->op = op; f->val = val; f->src = src; f->pred = pred; f->mask = mask;
  if (!(mask>>lane&1)) die(f, "warp intrinsic called by a lane that its mask leaves out");
  f->st = WARP; b->arrived[w] |= 1ull<<lane;
#ifdef CUEMU_TSAN                                          // only __syncwarp orders memory; shuffles and votes do not
  if (op==SYNCW) __tsan_release(&b->arrived[w]);
#endif
  if (!(mask & ~(b->arrived[w] | b->exited[w]) & CUEMU_FULL) || b->n % CUEMU_WARP) warp_check(b, w);
  if (f->st != RUN) to_main(f);
#ifdef CUEMU_TSAN
  if (op==SYNCW) __tsan_acquire(&b->arrived[w]);
#endif
  return f->res;
}
template<class T> inline T shfl(uint64_t mask, T v, int src, int site) {
  static_assert(sizeof(T)<=8, "shuffle of at most 8 bytes"); uint64_t u=0; memcpy(&u,&v,sizeof(T));
  u = collective(SHFL, mask, u, src, 0, site); memcpy(&v,&u,sizeof(T)); return v;
}
inline int lane_id() { return cur->lin % CUEMU_WARP; }
inline int seg(int width) { return lane_id() & ~(width-1); }
template<class T> T shfl_idx(uint64_t m,T v,int s,int w,int L){ return shfl(m,v,seg(w)+(s&(w-1)),L); }
template<class T> T shfl_up(uint64_t m,T v,unsigned d,int w,int L){ int s=lane_id()-(int)d; return shfl(m,v,s<seg(w)?lane_id():s,L); }
template<class T> T shfl_down(uint64_t m,T v,unsigned d,int w,int L){ int s=lane_id()+(int)d; return shfl(m,v,s>=seg(w)+w?lane_id():s,L); }
template<class T> T shfl_xor(uint64_t m,T v,int x,int w,int L){ int s=lane_id()^x; return shfl(m,v,s>=seg(w)+w?lane_id():s,L); }

// ---- launch -------------------------------------------------------------------------------
inline int g_order = 0;                                     // 0 forward, 1 reverse, >1 random with that seed
inline uint64_t g_switches = 0;
CUEMU_RT void run_block(Block& b, std::vector<Fiber>& pool, std::vector<unsigned>& ord) {
  b.n = b.live = b.bdim.x*b.bdim.y*b.bdim.z; b.nbar = 0; b.f = pool.data();
#ifdef CUEMU_TSAN
  b.main_tsan = __tsan_get_current_fiber(); __tsan_release(&b);
#endif
  for (unsigned i=0;i<b.n;i++) { Fiber& f=pool[i]; f.blk=&b; f.lin=i; f.st=RUN; f.site=0;
    f.tid = {i % b.bdim.x, i / b.bdim.x % b.bdim.y, i / (b.bdim.x*b.bdim.y)}; prepare(&f); }
  while (b.live && b.err.empty()) {
    bool moved = false;
    for (unsigned k=0;k<b.n && b.err.empty();k++) { Fiber& f=pool[ord[k]]; if (f.st==RUN) { moved = true; resume(&f); } }
    if (b.live && b.nbar==b.live) {
      int site=-1; b.count=0;
      for (unsigned i=0;i<b.n;i++) if (pool[i].st==BAR) { if (site<0) site=pool[i].site;
        if (site!=pool[i].site && b.err.empty()) b.err = "divergent barrier: lines "+std::to_string(site)+" and "+std::to_string(pool[i].site);
        b.count += pool[i].pred!=0; pool[i].st = RUN; }
      b.nbar = 0; b.gen++; moved = true;
    }
    if (!moved && b.err.empty()) { b.err = "deadlock: threads wait at";
      for (unsigned i=0, n=0;i<b.n && n<4;i++) if (pool[i].st==BAR||pool[i].st==WARP) { n++; b.err += " ["+std::to_string(i)+
        (pool[i].st==BAR?" barrier":" warp op")+" line "+std::to_string(pool[i].site)+"]"; } }
  }
#ifdef CUEMU_TSAN
  __tsan_acquire(&b.sync_end); __tsan_acquire(&b.sync_bar[0]); __tsan_acquire(&b.sync_bar[1]);
#endif
  for (unsigned i=0;i<b.n;i++) for (int k=0;k<64;k++) if (pool[i].stack[k]!=0x5a && b.err.empty()) b.err = "fiber stack overflow";
}
template<class... A, size_t... I> inline std::tuple<A...> unpack(void** a, std::index_sequence<I...>) { return std::tuple<A...>(*(A*)a[I]...); }
template<class... A> inline int launch(void (*k)(A...), const unsigned* g, const unsigned* t, size_t smem, void** argv, char* err, size_t errn) {
  struct Pack { void (*k)(A...); std::tuple<A...> a; } p{k, unpack<std::decay_t<A>...>(argv, std::index_sequence_for<A...>{})};
  unsigned n = t[0]*t[1]*t[2]; long nb = (long)g[0]*g[1]*g[2]; std::string first; std::mutex mu; uint64_t sw = 0;
  if (!n || n>1024) { snprintf(err, errn, "block of %u threads", n); return 1; }
#ifdef CUEMU_OPENMP
  #pragma omp parallel reduction(+:sw)
#endif
  {
    static thread_local std::vector<Fiber> pool; if (pool.size()<n) pool.resize(n);
#if defined(__x86_64__) && !defined(CUEMU_NO_FTZ)             // CuPy compiles with -ftz=true: flush denormals here too
    struct Csr { unsigned o = _mm_getcsr(); Csr() { _mm_setcsr(o | 0x8040); } ~Csr() { _mm_setcsr(o); } } csr;
#endif
    std::vector<unsigned> ord(n); std::iota(ord.begin(), ord.end(), 0u);
    if (g_order==1) std::reverse(ord.begin(), ord.end());
    if (g_order>1) std::shuffle(ord.begin(), ord.end(), std::mt19937(g_order));
#ifdef CUEMU_OPENMP
    #pragma omp for schedule(dynamic)
#endif
    for (long i=0;i<nb;i++) {
      long q = g_order ? nb-1-i : i;
      Block b{}; b.bid = {unsigned(q%g[0]), unsigned(q/g[0]%g[1]), unsigned(q/((long)g[0]*g[1]))};
      b.bdim = dim3(t[0],t[1],t[2]); b.gdim = dim3(g[0],g[1],g[2]);
      b.dyn = smem ? (char*)aligned_alloc(16, (smem+15)&~size_t(15)) : nullptr; if (smem) memset(b.dyn, 0xff, smem);
      b.args = &p; b.body = [](void* q){ auto* s=(Pack*)q; std::apply(s->k, s->a); };
#if !defined(CUEMU_OPENMP) && !defined(CUEMU_ASAN) && !defined(CUEMU_TSAN)
      if (__start_cuemu_shared) memset(__start_cuemu_shared, 0xff, __stop_cuemu_shared - __start_cuemu_shared);  // NaN, -1
#endif
      run_block(b, pool, ord); free(b.dyn); sw += b.switches;
      if (!b.err.empty()) { std::lock_guard<std::mutex> l(mu); if (first.empty()) first = b.err; }
    }
  }
  g_switches = sw;
  if (!first.empty()) { snprintf(err, errn, "%s", first.c_str()); return 1; }
  return 0;
}
template<class T> inline int alignment_of(T*) { if constexpr (std::is_void_v<T>) return 1; else return (int)alignof(T); }
template<class T> inline int alignment_of(T) { return 0; }
// The bytes of each argument, and what the addresses of pointers must be multiples of (0 for other arguments).
template<class... A> inline int arg_sizes(void (*)(A...), int* out, int* alignments) {
  int i=0; ((alignments[i]=alignment_of(A{}), out[i++]=(int)sizeof(A)),...); return i;
}
template<class T, class U> inline T fetch_op(T* p, U fn) {
  T o, n; __atomic_load(p, &o, __ATOMIC_RELAXED);
  do n = fn(o); while (!__atomic_compare_exchange(p, &o, &n, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); return o;
}
} // namespace cuemu

#define threadIdx (cuemu::cur->tid)
#define blockIdx (cuemu::cur->blk->bid)
#define blockDim (cuemu::cur->blk->bdim)
#define gridDim (cuemu::cur->blk->gdim)
#define warpSize CUEMU_WARP
#define __syncthreads() ((void)cuemu::barrier(0, __LINE__))
#define __syncthreads_count(p) cuemu::barrier((p)!=0, __LINE__)
#define __syncthreads_or(p) (cuemu::barrier((p)!=0, __LINE__)!=0)
#define __syncthreads_and(p) (cuemu::barrier((p)==0, __LINE__)==0)
#define __shfl_sync(m,v,...) cuemu::shfl_idx(m,v,cuemu::first(__VA_ARGS__),cuemu::width(__VA_ARGS__),__LINE__)
#define __shfl_up_sync(m,v,...) cuemu::shfl_up(m,v,cuemu::first(__VA_ARGS__),cuemu::width(__VA_ARGS__),__LINE__)
#define __shfl_down_sync(m,v,...) cuemu::shfl_down(m,v,cuemu::first(__VA_ARGS__),cuemu::width(__VA_ARGS__),__LINE__)
#define __shfl_xor_sync(m,v,...) cuemu::shfl_xor(m,v,cuemu::first(__VA_ARGS__),cuemu::width(__VA_ARGS__),__LINE__)
namespace cuemu { inline int first(int a,int=0){return a;} inline int width(int,int w=CUEMU_WARP){return w;}
  using mask_t = std::conditional_t<CUEMU_WARP==64, unsigned long long, unsigned>; }
#define __ballot_sync(m,p) ((cuemu::mask_t)cuemu::collective(cuemu::BALLOT,m,0,0,(p)!=0,__LINE__))
#define __any_sync(m,p) (cuemu::collective(cuemu::BALLOT,m,0,0,(p)!=0,__LINE__)!=0)
#define __all_sync(m,p) (cuemu::collective(cuemu::BALLOT,m,0,0,(p)==0,__LINE__)==0)
namespace cuemu { struct Syncwarp { int L; void operator()(uint64_t m=CUEMU_FULL) const { collective(SYNCW,m,0,0,0,L); } }; }
#define __syncwarp(...) cuemu::Syncwarp{__LINE__}(__VA_ARGS__)
inline void __threadfence(){ __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block(){}

template<class T> inline T atomicAdd(T* p, std::common_type_t<T> v){ return cuemu::fetch_op(p,[&](T o){return T(o+v);}); }
template<class T> inline T atomicMax(T* p, std::common_type_t<T> v){ return cuemu::fetch_op(p,[&](T o){return o>v?o:v;}); }
template<class T> inline T atomicMin(T* p, std::common_type_t<T> v){ return cuemu::fetch_op(p,[&](T o){return o<v?o:v;}); }
template<class T> inline T atomicOr(T* p, std::common_type_t<T> v){ return cuemu::fetch_op(p,[&](T o){return T(o|v);}); }
template<class T> inline T atomicExch(T* p, std::common_type_t<T> v){ return cuemu::fetch_op(p,[&](T){return v;}); }
template<class T> inline T atomicCAS(T* p, std::common_type_t<T> c, std::common_type_t<T> v){ return cuemu::fetch_op(p,[&](T o){return o==c?v:o;}); }
template<class T> inline T __ldg(const T* p){ return *p; }
inline float __expf(float x){return x<-104.f?0.f:expf(x);} inline float __logf(float x){return logf(x);} inline float rsqrtf(float x){return 1.f/sqrtf(x);}
inline double rsqrt(double x){return 1./sqrt(x);} inline float __fdividef(float a,float b){return a/b;} inline float __saturatef(float x){return x<0?0:x>1?1:x;}
inline int __popc(unsigned x){return __builtin_popcount(x);} inline int __popcll(unsigned long long x){return __builtin_popcountll(x);}
inline int __ffs(int x){return __builtin_ffs(x);} inline int __ffsll(long long x){return __builtin_ffsll(x);} inline int __clz(int x){return x?__builtin_clz(x):32;}
inline float __int_as_float(int i){float f;memcpy(&f,&i,4);return f;} inline int __float_as_int(float f){int i;memcpy(&i,&f,4);return i;}
inline unsigned __float_as_uint(float f){return (unsigned)__float_as_int(f);} inline float __uint_as_float(unsigned u){return __int_as_float((int)u);}
using std::sqrt; using std::log; using std::exp; using std::exp2; using std::ceil; using std::floor; using std::fabs; using std::rint; using std::ldexp; using std::isfinite;
template<class A,class B> constexpr std::common_type_t<A,B> min(A a,B b){ using T=std::common_type_t<A,B>; return T(b)<T(a)?T(b):T(a); }
template<class A,class B> constexpr std::common_type_t<A,B> max(A a,B b){ using T=std::common_type_t<A,B>; return T(a)<T(b)?T(b):T(a); }
