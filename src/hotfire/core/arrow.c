/* Arrow columns, taken out of what Python hands over and held against the sizes of their buffers. */
#include "arrow.h"

void hf_unpin(hf_pins *held) {
    while (held->count) PyBuffer_Release(&held->views[--held->count]);
}

Py_buffer *hf_pin(hf_pins *held, PyObject *object, int flags) {
    if (held->count == HF_PINS_MAX) { PyErr_SetString(PyExc_ValueError, "too many columns"); return NULL; }
    Py_buffer *view = &held->views[held->count];
    if (PyObject_GetBuffer(object, view, flags)) return NULL;
    held->count++;
    return view;
}

static int read_validity(hf_pins *held, PyObject *object, int64_t rows, const uint8_t **out) {
    *out = NULL;
    if (object == Py_None) return 1;
    Py_buffer *view = hf_pin(held, object, PyBUF_SIMPLE);
    if (!view) return 0;
    if (view->len < (rows + 7) / 8) { PyErr_SetString(PyExc_ValueError, "a column's validity is shorter than its rows"); return 0; }
    *out = view->buf;
    return 1;
}

static int read_offsets(hf_pins *held, PyObject *object, int64_t first, int64_t count, const uint8_t **out) {
    Py_buffer *view = hf_pin(held, object, PyBUF_SIMPLE);
    if (!view) return 0;
    if (first < 0 || count < 0 || first > (1ll << 40) || count > (1ll << 40) || view->len / 4 < first + count + 1) {
        PyErr_SetString(PyExc_ValueError, "a column's offsets are fewer than its rows");
        return 0;
    }
    *out = view->buf;
    return 1;
}

int hf_read_text(hf_pins *held, PyObject *object, int64_t count, hf_texts *out) {
    PyObject *valid, *offsets, *data;
    long long first;
    memset(out, 0, sizeof *out);
    if (!PyTuple_Check(object) || !PyArg_ParseTuple(object, "OOOL;a text column", &valid, &offsets, &data, &first)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a text column is a tuple of four");
        return 0;
    }
    if (!read_offsets(held, offsets, first, count, &out->offsets) || !read_validity(held, valid, first + count, &out->valid)) return 0;
    out->first = first;
    out->count = count;
    if (data == Py_None) return 1;
    Py_buffer *view = hf_pin(held, data, PyBUF_SIMPLE);
    if (!view) return 0;
    out->data = view->buf;
    out->data_size = view->len;
    return 1;
}

int hf_read_map(hf_pins *held, PyObject *object, int64_t count, hf_maps *out) {
    PyObject *valid, *offsets, *names, *values;
    long long first, entries;
    memset(out, 0, sizeof *out);
    if (!PyTuple_Check(object) || !PyArg_ParseTuple(object, "OOLLOO;a map column", &valid, &offsets, &first, &entries, &names, &values)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a map column is a tuple of six");
        return 0;
    }
    out->first = first;
    out->count = count;
    return read_offsets(held, offsets, first, count, &out->offsets) && read_validity(held, valid, first + count, &out->valid) &&
           hf_read_text(held, names, entries, &out->names) && hf_read_text(held, values, entries, &out->values);
}

int hf_read_selection(hf_pins *held, PyObject *rows, int64_t count, int64_t at, int64_t end, hf_rows *out) {
    *out = (hf_rows){NULL, count, at, end};
    int64_t there = count;
    if (rows != Py_None) {
        Py_buffer *view = hf_pin(held, rows, PyBUF_SIMPLE);
        if (!view) return 0;
        out->p = view->buf;
        there = view->len / 4;
    }
    if (count >= 0 && at >= 0 && at <= end && end <= there) return 1;
    PyErr_Format(PyExc_ValueError, "rows %lld to %lld of %lld", (long long)at, (long long)end, (long long)there);
    return 0;
}

PyObject *hf_refuse_row(const hf_refusal *r) {
    PyObject *args = Py_BuildValue("(Ls)", (long long)r->row, r->problem);
    if (args) PyErr_SetObject(PyExc_ValueError, args);
    Py_XDECREF(args);
    return NULL;
}
