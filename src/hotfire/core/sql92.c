/* SQL92 conditions, compiled by protocol/sql92.py, run over raw properties. protocol/sqlcode.py says what a program is,
   plain_sql92.py is the plain twin. Programs are ours, and still each byte of one is held against its end: nothing
   here may depend on what another module got right. A run goes forward only, so its length is the program's. */
#define _GNU_SOURCE
#include "sql92.h"

#define FORMAT 1
#define STACK_MAX 250
#define PROPERTIES_MAX 32767
#define STEP_COST 8                /* of an instruction, in bytes looked at: a nanosecond each, at most */
#define DOUBLE_COST 256            /* of a text read as a double, beside its bytes; plain_sql92.py counts the same */

enum { OP_NULL = 1, OP_FALSE, OP_TRUE, OP_INT, OP_LONG, OP_DOUBLE, OP_TEXT, OP_PROPERTY, OP_VOID, OP_NOT, OP_CAST, OP_IS_NULL,
       OP_EQUAL, OP_GREATER, OP_GREATER_EQUAL, OP_LESS, OP_LESS_EQUAL, OP_AND, OP_OR, OP_IF_FALSE, OP_IF_TRUE, OP_IF_NULL, OP_IN,
       OP_CONTAINS, OP_STARTS, OP_ENDS, OP_NOT_CONTAINS, OP_NOT_STARTS, OP_NOT_ENDS };
typedef enum { V_NULL, V_BOOL, V_INT, V_LONG, V_DOUBLE, V_TEXT } kind;
typedef struct { kind kind; int64_t whole; double real; hf_slice text; slot *from; } value;

/* ---- numbers as Java reads them ---- */

static int read_long(hf_slice s, int64_t *out) {
    const uint8_t *p = s.p, *end = p + s.size;
    int negative = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) p++;
    if (p == end) return 0;
    uint64_t limit = (uint64_t)INT64_MAX + (uint64_t)negative, v = 0;
    for (; p < end; p++) {
        unsigned digit = *p - (unsigned)'0';
        if (digit > 9 || v > (limit - digit) / 10) return 0;
        v = v * 10 + digit;
    }
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return 1;
}

static const uint8_t *past_digits(const uint8_t *p, const uint8_t *end, int hex) {
    while (p < end && ((*p >= '0' && *p <= '9') || (hex && ((*p | 32) >= 'a' && (*p | 32) <= 'f')))) p++;
    return p;
}

/* Digits with a point among them or not, and the exponent: what is left of [p, end) when that is a number, else NULL. */
static const uint8_t *past_number(const uint8_t *p, const uint8_t *end, int hex) {
    const uint8_t *first = p, *stop = past_digits(p, end, hex);
    size_t digits = (size_t)(stop - first);
    if (stop < end && *stop == '.') {
        first = stop + 1;
        stop = past_digits(first, end, hex);
        digits += (size_t)(stop - first);
    }
    if (!digits) return NULL;
    int mark = hex ? 'p' : 'e';
    if (stop < end && (*stop | 32) == mark) {
        p = stop + 1;
        if (p < end && (*p == '+' || *p == '-')) p++;
        stop = past_digits(p, end, 0);
        if (stop == p) return NULL;
    } else if (hex) return NULL;
    return stop;
}

static int is_word(const uint8_t *p, const uint8_t *end, const char *word) {
    size_t size = strlen(word);
    return (size_t)(end - p) == size && !memcmp(p, word, size);
}

/* Hexadecimal ones, which are rare, are Python's to read: exact, whatever the locale. */
static double read_hex(const char *text) {
    PyObject *found = PyObject_CallMethod((PyObject *)&PyFloat_Type, "fromhex", "s", text);
    if (!found) {
        PyErr_Clear(); /* too large for a double */
        return *text == '-' ? -Py_HUGE_VAL : Py_HUGE_VAL;
    }
    double result = PyFloat_AsDouble(found);
    Py_DECREF(found);
    return result;
}

static int read_double(hf_slice s, double *out) {
    const uint8_t *p = s.p, *end = p + s.size;
    char text[PROPERTIES_MAX + 1];
    while (p < end && *p <= ' ') p++;
    while (p < end && end[-1] <= ' ') end--;
    const uint8_t *start = p;
    int negative = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) p++;
    if (is_word(p, end, "NaN")) { *out = Py_NAN; return 1; }
    if (is_word(p, end, "Infinity")) { *out = negative ? -Py_HUGE_VAL : Py_HUGE_VAL; return 1; }
    int hex = end - p > 2 && p[0] == '0' && (p[1] | 32) == 'x';
    const uint8_t *stop = past_number(hex ? p + 2 : p, end, hex);
    if (!stop || stop - start > PROPERTIES_MAX) return 0;
    if (stop != end && !(end - stop == 1 && ((*stop | 32) == 'f' || (*stop | 32) == 'd'))) return 0;
    memcpy(text, start, (size_t)(stop - start));
    text[stop - start] = 0;
    *out = hex ? read_hex(text) : PyOS_string_to_double(text, NULL, NULL);
    if (PyErr_Occurred()) { PyErr_Clear(); return 0; }
    return 1;
}

/* ---- comparing ---- */

static int text_as_long(program *g, const value *v, int64_t *out) {
    slot *s = v->from;
    if (!s) { g->cost += STEP_COST + v->text.size; return read_long(v->text, out); }
    if (s->as_long == UNREAD) { g->cost += STEP_COST + v->text.size; s->as_long = read_long(v->text, &s->whole) ? READ : UNREADABLE; }
    *out = s->whole;
    return s->as_long == READ;
}

static int text_as_double(program *g, const value *v, double *out) {
    slot *s = v->from;
    if (!s) { g->cost += DOUBLE_COST + v->text.size; return read_double(v->text, out); }
    if (s->as_double == UNREAD) { g->cost += DOUBLE_COST + v->text.size; s->as_double = read_double(v->text, &s->real) ? READ : UNREADABLE; }
    *out = s->real;
    return s->as_double == READ;
}

/* A text becomes a number of the other side's kind; 0 when it is none. */
static int convert(program *g, value *v, kind to) {
    if (v->kind != V_TEXT) return 1;
    if (to == V_DOUBLE) { v->kind = V_DOUBLE; return text_as_double(g, v, &v->real); }
    if (!text_as_long(g, v, &v->whole)) return 0;
    v->kind = to;
    return to == V_LONG || (v->whole >= INT32_MIN && v->whole <= INT32_MAX);
}

static int order_doubles(double a, double b) {
    if (a < b) return -1;
    if (a > b) return 1;
    int64_t x, y; /* as Java: NaN is above all and equals itself, -0.0 is below 0.0 */
    if (a != a) x = INT64_MAX; else memcpy(&x, &a, 8);
    if (b != b) y = INT64_MAX; else memcpy(&y, &b, 8);
    return (x > y) - (x < y);
}

static int is_number(kind k) { return k == V_INT || k == V_LONG || k == V_DOUBLE; }

/* How two numbers, or a number and a text, lie; 0 when they cannot be compared. */
static int order(program *g, value *a, value *b, int *out) {
    if (is_number(b->kind) ? !convert(g, a, b->kind) : !convert(g, b, a->kind)) return 0;
    if (a->kind == V_DOUBLE || b->kind == V_DOUBLE)
        *out = order_doubles(a->kind == V_DOUBLE ? a->real : (double)a->whole, b->kind == V_DOUBLE ? b->real : (double)b->whole);
    else *out = (a->whole > b->whole) - (a->whole < b->whole);
    return 1;
}

static int same(hf_slice a, hf_slice b) { return a.size == b.size && !memcmp(a.p, b.p, a.size); }
static int is_true(hf_slice s) { return s.size == 4 && (s.p[0] | 32) == 't' && (s.p[1] | 32) == 'r' && (s.p[2] | 32) == 'u' && (s.p[3] | 32) == 'e'; }

static int equals(program *g, value *a, value *b) {
    int way;
    if (a->kind == V_NULL) return b->kind == V_NULL ? IS_TRUE : IS_NULL;
    if (b->kind == V_NULL) return IS_FALSE;
    if (a->kind == V_TEXT && b->kind == V_TEXT) { g->cost += a->text.size; return same(a->text, b->text); }
    if (a->kind == V_BOOL) return b->kind == V_TEXT ? FAILED : b->kind == V_BOOL && a->whole == b->whole;
    if (b->kind == V_BOOL) return a->kind == V_TEXT && is_true(a->text) == (int)b->whole;
    return order(g, a, b, &way) ? way == 0 : FAILED;
}

static int compares(program *g, int op, value *a, value *b) {
    int way;
    if (a->kind == V_NULL || b->kind == V_NULL) return IS_NULL;
    if (a->kind == V_BOOL || b->kind == V_BOOL) return FAILED; /* the compiler lets none through */
    if (a->kind == V_TEXT && b->kind == V_TEXT && (!convert(g, a, V_DOUBLE) || !convert(g, b, V_DOUBLE))) return FAILED;
    if (!order(g, a, b, &way)) return FAILED;
    return op == OP_GREATER ? way > 0 : op == OP_GREATER_EQUAL ? way >= 0 : op == OP_LESS ? way < 0 : way <= 0;
}

/* ---- running ---- */

static value truth(int verdict) { return (value){.kind = verdict == IS_NULL ? V_NULL : V_BOOL, .whole = verdict == IS_TRUE}; }
static int is_false(const value *v) { return v->kind == V_BOOL && !v->whole; }
static int is_yes(const value *v) { return v->kind == V_BOOL && v->whole; }

/* Two bytes of length and as many behind them. */
static int take_text(const uint8_t **pc, const uint8_t *end, hf_slice *out) {
    if (end - *pc < 2) return 0;
    uint32_t size = get16(*pc);
    if ((size_t)(end - *pc - 2) < size) return 0;
    *out = (hf_slice){*pc + 2, size};
    *pc += 2 + size;
    return 1;
}

/* Whether the property is one of the texts; they are passed over in any case. */
static int is_listed(program *g, const uint8_t **pc, int *verdict) {
    if (g->end - *pc < 3 || **pc >= g->names) return 0;
    const slot *s = &g->slots[**pc];
    int found = 0;
    unsigned count = get16(*pc + 1);
    *pc += 3;
    for (hf_slice text; count; count--) {
        if (!take_text(pc, g->end, &text)) return 0;
        g->cost += STEP_COST;
        if (s->text.p && same(text, s->text)) found = 1;
    }
    *verdict = s->text.p ? found : IS_NULL;
    return 1;
}

static int finds(program *g, int op, const value *in, hf_slice sought) {
    if (in->kind != V_TEXT || !sought.size) return IS_FALSE;
    int fits = sought.size <= in->text.size, found = 0, no = op >= OP_NOT_CONTAINS;
    if (no) op -= OP_NOT_CONTAINS - OP_CONTAINS;
    g->cost += op == OP_CONTAINS ? in->text.size : sought.size;
    if (fits && op == OP_CONTAINS) found = memmem(in->text.p, in->text.size, sought.p, sought.size) != NULL;
    else if (fits && op == OP_STARTS) found = !memcmp(in->text.p, sought.p, sought.size);
    else if (fits) found = !memcmp(in->text.p + in->text.size - sought.size, sought.p, sought.size);
    return found != no;
}

static value joined(int op, const value *a, const value *b) {
    if (op == OP_AND ? is_false(a) || is_false(b) : is_yes(a) || is_yes(b)) return truth(op == OP_OR);
    if (a->kind == V_NULL || b->kind == V_NULL) return truth(IS_NULL);
    return truth(op == OP_AND);
}

/* A value that an instruction brings with it. 0: it is none of those, or cut short. */
static int pushed(program *g, int op, const uint8_t **pc, value *out) {
    *out = (value){.kind = V_NULL};
    if (op == OP_NULL) return 1;
    if (op == OP_FALSE || op == OP_TRUE) { *out = truth(op == OP_TRUE); return 1; }
    if (op == OP_TEXT) { out->kind = V_TEXT; return take_text(pc, g->end, &out->text); }
    if (op == OP_PROPERTY) {
        if (*pc == g->end || **pc >= g->names) return 0;
        slot *s = &g->slots[*(*pc)++];
        if (s->text.p) *out = (value){.kind = V_TEXT, .text = s->text, .from = s};
        return 1;
    }
    if (g->end - *pc < 8) return 0;
    uint64_t bits = get64(*pc);
    *pc += 8;
    out->kind = op == OP_INT ? V_INT : op == OP_LONG ? V_LONG : V_DOUBLE;
    if (op == OP_DOUBLE) memcpy(&out->real, &bits, 8);
    else out->whole = (int64_t)bits;
    return op == OP_INT || op == OP_LONG || op == OP_DOUBLE;
}

/* Instructions that replace the topmost value. 0: it is none of those, or cut short. */
static int replaced(program *g, int op, const uint8_t **pc, value *top) {
    hf_slice sought;
    if (op == OP_VOID) *top = truth(IS_NULL);
    else if (op == OP_NOT) { if (top->kind != V_NULL) *top = truth(!is_yes(top)); }
    else if (op == OP_CAST) { if (top->kind != V_NULL) *top = truth(is_yes(top)); }
    else if (op == OP_IS_NULL) *top = truth(top->kind == V_NULL);
    else if (!take_text(pc, g->end, &sought)) return 0;
    else *top = truth(finds(g, op, top, sought));
    return 1;
}

/* What the program makes of the properties in its slots; a program that is none fails as one that ends in an error. */
static int run(program *g) {
    value stack[STACK_MAX];
    int top = 0;
    for (const uint8_t *pc = g->code; pc < g->end;) {
        int op = *pc++, verdict;
        g->cost += STEP_COST;
        if (op <= OP_PROPERTY) {
            if (top >= g->stack || !pushed(g, op, &pc, &stack[top])) return FAILED;
            top++;
        } else if (op == OP_IN) {
            if (top >= g->stack || !is_listed(g, &pc, &verdict)) return FAILED;
            stack[top++] = truth(verdict);
        } else if (op >= OP_IF_FALSE && op <= OP_IF_NULL) {
            if (!top || g->end - pc < 2) return FAILED;
            const value *v = &stack[top - 1];
            size_t distance = get16(pc);
            pc += 2;
            if (distance > (size_t)(g->end - pc)) return FAILED;
            if (op == OP_IF_FALSE ? is_false(v) : op == OP_IF_TRUE ? is_yes(v) : v->kind == V_NULL) pc += distance;
        } else if (op >= OP_EQUAL && op <= OP_OR) {
            if (top < 2) return FAILED;
            value *a = &stack[top - 2], *b = &stack[top - 1];
            top--;
            if (op >= OP_AND) { *a = joined(op, a, b); continue; }
            verdict = op == OP_EQUAL ? equals(g, a, b) : compares(g, op, a, b);
            if (verdict == FAILED) return FAILED;
            *a = truth(verdict);
        } else if (!top || op > OP_NOT_ENDS || !replaced(g, op, &pc, &stack[top - 1])) return FAILED;
    }
    if (top != 1) return FAILED;
    return stack[0].kind == V_NULL ? IS_NULL : is_yes(&stack[0]) ? IS_TRUE : stack[0].kind == V_BOOL ? IS_FALSE : FAILED;
}

int hf_program_load(program *g, hf_slice code) {
    const uint8_t *p = code.p, *end = p + code.size;
    if (code.size < 3 || p[0] != FORMAT || p[1] > STACK_MAX || p[2] > NAMES_MAX) return 0;
    g->stack = p[1];
    g->names = p[2];
    g->cost = 0;
    p += 3;
    for (int i = 0; i < g->names; i++) {
        g->slots[i] = (slot){0};
        if (!take_text(&p, end, &g->slots[i].name)) return 0;
    }
    g->code = p;
    g->end = end;
    return 1;
}

/* Fill the slots. Pairs without a name or a value are none; of several with one name the last counts. */
static void find(program *g, hf_slice properties) {
    const uint8_t *p = properties.p, *end = p + properties.size;
    for (int i = 0; i < g->names; i++) {
        slot *s = &g->slots[i];
        s->text.p = NULL;
        s->as_long = s->as_double = UNREAD;
    }
    g->cost += properties.size;
    while (p < end) {
        const uint8_t *stop = memchr(p, 2, (size_t)(end - p)), *mark;
        if (!stop) stop = end;
        mark = memchr(p, 1, (size_t)(stop - p));
        if (mark && mark > p && stop - mark > 1) {
            uint32_t size = (uint32_t)(mark - p);
            g->cost += g->names;
            for (int i = 0; i < g->names; i++)
                if (g->slots[i].name.size == size && !memcmp(g->slots[i].name.p, p, size)) {
                    g->slots[i].text = (hf_slice){mark + 1, (uint32_t)(stop - mark - 1)};
                    break;
                }
        }
        p = stop + 1;
    }
}

int hf_program_verdict(program *g, hf_slice properties) {
    find(g, properties);
    return run(g);
}

/* sql_verdict(program, properties) -> 1 TRUE, 0 FALSE, -1 NULL, -2 it ended in an error */
PyObject *hf_sql_verdict(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer code, properties;
    if (!PyArg_ParseTuple(args, "y*y*", &code, &properties)) return NULL;
    program g;
    int verdict = FAILED;
    if (hf_program_load(&g, (hf_slice){code.buf, (uint32_t)code.len}))
        verdict = hf_program_verdict(&g, (hf_slice){properties.buf, (uint32_t)properties.len});
    PyBuffer_Release(&code);
    PyBuffer_Release(&properties);
    return PyLong_FromLong(verdict);
}
