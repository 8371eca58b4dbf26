/* A compiled condition, made ready to be run over the properties of one message after the other: sql92.c. */
#ifndef HOTFIRE_SQL92_H
#define HOTFIRE_SQL92_H
#include "store.h"

#define NAMES_MAX 128
enum { FAILED = -2, IS_NULL = -1, IS_FALSE = 0, IS_TRUE = 1 };
typedef enum { UNREAD, READ, UNREADABLE } reading;

typedef struct {
    hf_slice name, text;           /* text.p is NULL when the message has no such property */
    reading as_long, as_double;    /* read as a number once, however often it is compared */
    int64_t whole;
    double real;
} slot;
typedef struct {
    const uint8_t *code, *end;
    int names, stack;
    int64_t cost;                  /* bytes looked at so far, and so many for each instruction */
    slot slots[NAMES_MAX];
} program;

int hf_program_load(program *g, hf_slice code); /* 0 when the bytes are no program */
int hf_program_verdict(program *g, hf_slice properties);
#endif
