// Records as brokers hand them out: what the generators check of them is at fixed places.
#ifndef BENCH_RECORDS_H
#define BENCH_RECORDS_H
#include "wire.h"

enum { RECORD_BODY_SIZE = 84, RECORD_BODY = 88 };

// The size of the record at `at`, of which `left` bytes are there and which has a body of `body` bytes; 0 when it is none.
static size_t record_size(const char *at, size_t left, size_t body) {
  size_t size = left < RECORD_BODY + body ? 0 : get32(at);
  return size < RECORD_BODY + body || size > left || get32(at + RECORD_BODY_SIZE) != body ? 0 : size;
}

#endif
