// What generated steps call (step_code.py): functions of one number, a product of matrices, orders of rows, and
// threads over clients. Every loop has a length that is known when it is compiled.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace motet {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif

template <class T> struct Lanes {
  typedef T Vector __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int many = VECTOR_BYTES / sizeof(T);
};

// ---- functions of one number; nan stays nan ----

template <class T> inline T relu(T x) { return x < T(0) ? T(0) : x; }
template <class T> inline T square(T x) { return x * x; }
template <class T> inline T larger(T a, T b) { return (a > b || a != a) ? a : b; }
template <class T> inline T smaller(T a, T b) { return (a < b || a != a) ? a : b; }
template <class T> inline T at_least(T x, T low) { return x < low ? low : x; }
template <class T> inline T at_most(T x, T high) { return x > high ? high : x; }
template <class T> inline T sign(T x) { return T(x > T(0)) - T(x < T(0)) + (x != x ? x : T(0)); }

inline double exponential(double x) { return std::exp(x); }
inline double logarithm(double x) { return std::log(x); }

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2, and Taylor's series of exp(r), whose rest is below half a last place.
// Without a branch, so that compilers turn loops over it into vectors. Below the smallest normal number it is 0.
inline float exponential(float x) {
  const float n = __builtin_rintf(x * 1.44269504f);
  float r = __builtin_fmaf(n, -0.693359375f, x);
  r = __builtin_fmaf(n, 2.12194440e-4f, r);
  float p = 1.98412698e-4f;
  p = __builtin_fmaf(p, r, 1.38888889e-3f);
  p = __builtin_fmaf(p, r, 8.33333333e-3f);
  p = __builtin_fmaf(p, r, 4.16666667e-2f);
  p = __builtin_fmaf(p, r, 1.66666667e-1f);
  p = __builtin_fmaf(p, r, 0.5f);
  p = __builtin_fmaf(p, r, 1.0f);
  p = __builtin_fmaf(p, r, 1.0f);
  // 2^n in two factors: n may be 128 where exp(x) is still finite
  const float inside = n < -126.0f ? -126.0f : n > 128.0f ? 128.0f : n;
  const int32_t whole = (int32_t)inside, half = whole >> 1;
  const uint32_t first = (uint32_t)(half + 127) << 23, second = (uint32_t)(whole - half + 127) << 23;
  float a, b;
  std::memcpy(&a, &first, 4);
  std::memcpy(&b, &second, 4);
  const float y = p * a * b;
  const float low = x < -87.33654f ? 0.0f : y;
  return x > 88.72283f ? std::numeric_limits<float>::infinity() : low;
}

// log(x) = e ln(2) + log(m) with m in [sqrt(1/2), sqrt(2)), and log(m) = 2 artanh(s) with s = (m - 1) / (m + 1).
inline float logarithm(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t shifted = bits - 0x3f3504f3u;  // of sqrt(1/2)
  const float e = (float)((int32_t)shifted >> 23);
  const uint32_t of_m = (shifted & 0x007fffffu) + 0x3f3504f3u;
  float m;
  std::memcpy(&m, &of_m, 4);
  const float f = m - 1.0f, s = f / (2.0f + f), z = s * s;
  float p = 2.0f / 11.0f;
  p = __builtin_fmaf(p, z, 2.0f / 9.0f);
  p = __builtin_fmaf(p, z, 2.0f / 7.0f);
  p = __builtin_fmaf(p, z, 2.0f / 5.0f);
  p = __builtin_fmaf(p, z, 2.0f / 3.0f);
  const float of_mantissa = __builtin_fmaf(s * z, p, 2.0f * s);
  const float y = __builtin_fmaf(e, 0.693359375f, __builtin_fmaf(e, -2.12194440e-4f, of_mantissa));
  const float usual = x == std::numeric_limits<float>::infinity() ? x : y;
  const float zero = x < 1.17549435e-38f ? -std::numeric_limits<float>::infinity() : usual;
  return (x < 0.0f || x != x) ? std::numeric_limits<float>::quiet_NaN() : zero;
}

template <class T> inline T sigmoid(T x) { return T(1) / (T(1) + exponential(-x)); }
inline double hyperbolic_tangent(double x) { return std::tanh(x); }
inline float hyperbolic_tangent(float x) { return std::tanh(x); }

// ---- sums, largest and smallest of a row ----
// Halves are folded into each other: a loop with one result would add its 16 lanes one after another.

struct Sum {
  template <class V> static V of(V a, V b) { return a + b; }
};
struct Largest {
  template <class V> static V of(V a, V b) { return a > b ? a : b; }
};
struct Smallest {
  template <class V> static V of(V a, V b) { return a < b ? a : b; }
};

template <class How, int N, class T> inline T halves(const T *each) {
  if constexpr (N == 1) {
    return each[0];
  } else {
    typedef T Half __attribute__((vector_size(N / 2 * sizeof(T))));
    Half a, b;
    std::memcpy(&a, each, sizeof(Half));
    std::memcpy(&b, each + N / 2, sizeof(Half));
    a = How::of(a, b);
    T left[N / 2];
    std::memcpy(left, &a, sizeof(Half));
    return halves<How, N / 2>(left);
  }
}

// Of N elements, a multiple of 16.
template <class How, int N, class T> inline T folded(const T *each) {
  constexpr int L = Lanes<T>::many;
  typename Lanes<T>::Vector all, more;
  std::memcpy(&all, each, sizeof(all));
  for (int i = L; i < N; i += L) {
    std::memcpy(&more, each + i, sizeof(more));
    all = How::of(all, more);
  }
  T lanes[L];
  std::memcpy(lanes, &all, sizeof(all));
  return halves<How, L>(lanes);
}

// ---- product of matrices ----
// c[m, n] = sum over k of a[m, k] b[k, n]; rows of b and c lie along n, with no gaps. A tile of c stays in registers.

template <class T, int ROWS, int WIDTH, int K, int AM, int AK, int BK, int CM>
inline void tile(const T *a, const T *b, T *c) {
  using V = typename Lanes<T>::Vector;
  constexpr int L = Lanes<T>::many, MANY = (WIDTH + L - 1) / L, REST = WIDTH - (MANY - 1) * L;
  V sum[ROWS][MANY] = {};
  for (int k = 0; k < K; k++) {
    V row[MANY];
#pragma GCC unroll 8
    for (int v = 0; v < MANY; v++) std::memcpy(&row[v], b + k * BK + v * L, sizeof(V));
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      const T one = a[r * AM + k * AK];
#pragma GCC unroll 8
      for (int v = 0; v < MANY; v++) sum[r][v] += one * row[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
    for (int v = 0; v + 1 < MANY; v++) std::memcpy(c + r * CM + v * L, &sum[r][v], sizeof(V));
    std::memcpy(c + r * CM + (MANY - 1) * L, &sum[r][MANY - 1], REST * sizeof(T));
  }
}

template <class T, int ROWS, int N, int K, int AM, int AK, int BK, int CM>
inline void row_of_tiles(const T *a, const T *b, T *c) {
  constexpr int BLOCK = 2 * Lanes<T>::many, FULL = N / BLOCK * BLOCK;
  for (int n = 0; n < FULL; n += BLOCK) tile<T, ROWS, BLOCK, K, AM, AK, BK, CM>(a, b + n, c + n);
  if constexpr (N > FULL) tile<T, ROWS, N - FULL, K, AM, AK, BK, CM>(a, b + FULL, c + FULL);
}

constexpr int rows_at_once(int m) {
  for (int r = 6; r > 3; r--)
    if (m % r == 0) return r;
  return m < 6 ? m : 6;
}

template <class T, int M, int N, int K, int AM, int AK, int BK, int CM>
inline void product(const T *a, const T *b, T *c) {
  constexpr int R = rows_at_once(M), FULL = M / R * R;
  for (int m = 0; m < FULL; m += R) row_of_tiles<T, R, N, K, AM, AK, BK, CM>(a + m * AM, b, c + m * CM);
  if constexpr (M > FULL)
    row_of_tiles<T, M - FULL, N, K, AM, AK, BK, CM>(a + FULL * AM, b, c + FULL * CM);
}

// A row by its number, from the end if it is negative; a number that no row has is noted.
inline int64_t row(bool &outside, int64_t number, int64_t rows) {
  const int64_t at = number < 0 ? number + rows : number;
  if (at >= 0 && at < rows) return at;
  outside = true;
  return 0;
}

// A place by its number, as gather and scatter want it: a negative number is no place.
inline int64_t place(bool &outside, int64_t number, int64_t places) {
  if (number >= 0) return row(outside, number, places);
  outside = true;
  return 0;
}

// ---- the order of rows in an epoch: data.py's `orders` in whole numbers, bit by bit ----

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

inline uint64_t mix(uint64_t key) {
  key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9u;
  key = (key ^ (key >> 27)) * 0x94D049BB133111EBu;
  return key ^ (key >> 31);
}

// Keys are spread evenly over 62 bits, so that buckets by their first bits leave little to sort.
inline void ascending(std::vector<uint64_t> &keys, std::vector<uint64_t> &spare) {
  const size_t n = keys.size();
  int bits = 4;
  while (bits < 14 && (size_t(1) << bits) < n) bits++;
  if (n > size_t(1) << 16) return std::sort(keys.begin(), keys.end());
  std::vector<uint32_t> first((size_t(1) << bits) + 1, 0);
  for (uint64_t key : keys) first[(key >> (62 - bits)) + 1]++;
  for (size_t i = 1; i < first.size(); i++) first[i] += first[i - 1];
  spare.resize(n);
  for (uint64_t key : keys) spare[first[key >> (62 - bits)]++] = key;
  for (size_t i = 1; i < n; i++) {
    const uint64_t key = spare[i];
    size_t j = i;
    for (; j > 0 && spare[j - 1] > key; j--) spare[j] = spare[j - 1];
    spare[j] = key;
  }
  keys.swap(spare);
}

struct RowOrder {
  std::vector<uint64_t> keys, spare;
  void shuffle(int64_t seed, int64_t epoch, int64_t n) {
    const uint64_t start = mix((uint64_t)seed + (uint64_t)(epoch + 1) * GOLDEN);
    keys.resize(n);
    for (int64_t i = 0; i < n; i++) {
      const uint64_t hash = mix(start + (uint64_t)(i + 1) * GOLDEN) & ((uint64_t(1) << 62) - 1);
      keys[i] = (hash >> 24 << 24) | (uint64_t)i;
    }
    ascending(keys, spare);
  }
  int64_t operator[](int64_t place) const { return keys[place] & ((1 << 24) - 1); }
};

// ---- clients ----

// Inside, numbers near 0 (denormals) are 0, as in the rest of a run; they are many times slower.
struct WithoutDenormals {
#if defined(__SSE__)
  unsigned before = _mm_getcsr();
  WithoutDenormals() { _mm_setcsr(before | 0x8040); }
  ~WithoutDenormals() { _mm_setcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;
  WithoutDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before));
    asm volatile("msr fpcr, %0" ::"r"(before | (uint64_t(1) << 24)));
  }
  ~WithoutDenormals() { asm volatile("msr fpcr, %0" ::"r"(before)); }
#endif
};

// Each client's arithmetic is its own, so the number of threads changes no bit.
// Returns whether some row was asked for by a number that no row has.
template <class One> inline bool each_client(int64_t clients, int64_t threads, One one) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> outside{false};
  auto work = [&] {
    WithoutDenormals on;
    auto arena = one.arena();
    for (int64_t c = next++; c < clients; c = next++) one(*arena, c);
    if (arena->outside) outside = true;
  };
  std::vector<std::thread> others;
  for (int64_t t = 1; t < std::min(threads, clients); t++) others.emplace_back(work);
  work();
  for (auto &thread : others) thread.join();
  return outside;
}

}  // namespace motet
