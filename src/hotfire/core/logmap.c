/* Log bytes that are in memory, straight from the page cache: records of several queues lie between each other, and a
   system call for each, or one that copies all that lies between, costs more than the records themselves.
   A page that is not there would be a disk read with the loop stopped, or worse, an error of the disk that nobody
   can be told of. So the kernel is asked first (mincore): what it does not have is cold, and read beside the loop. */
#define _GNU_SOURCE
#include "store.h"
#include <sys/mman.h>

#define PAGE_BYTES 4096            /* where pages are larger the kernel refuses the question, and all is read the long way */
#define SPAN_PAGES_MAX 512         /* asked for at once */
#define GAP_PAGES_MAX 16           /* what is farther apart is asked for apart: the kernel looks at the pages between, too */

static const uint8_t *map_of(hf_segment *s) {
    if (!s->map && !s->unmappable) {
        void *map = mmap(NULL, (size_t)s->size, PROT_READ, MAP_SHARED, s->fd, 0);
        if (map == MAP_FAILED) s->unmappable = 1;
        else s->map = map;
    }
    return s->map;
}

void hf_segment_unmap(hf_segment *s) {
    if (s->map) munmap((void *)s->map, (size_t)s->size);
    s->map = NULL;
}

static int64_t page_of(int64_t position) { return position / PAGE_BYTES; }

/* How many of the pieces, which are in log order, lie in this segment and near each other, within one span from the first. */
static int count_near(const hf_segment *s, const hf_piece *pieces, int count) {
    int64_t first = page_of(pieces[0].physical - s->start), last_end = pieces[0].physical;
    int n = 0;
    for (; n < count; n++) {
        const hf_piece *p = &pieces[n];
        int64_t end = p->physical + p->size;
        if (p->physical < last_end || end > s->start + s->size) break;
        if (page_of(end - 1 - s->start) - first >= SPAN_PAGES_MAX) break;
        if (n && page_of(p->physical - s->start) - page_of(last_end - 1 - s->start) > GAP_PAGES_MAX) break;
        last_end = end;
    }
    return n;
}

/* 1: all in memory, 0: not all, -1: the kernel does not say. */
static int resident(const uint8_t *map, const hf_segment *s, const hf_piece *pieces, int count) {
    unsigned char present[SPAN_PAGES_MAX];
    int64_t first = page_of(pieces[0].physical - s->start);
    int64_t end = pieces[count - 1].physical + pieces[count - 1].size - s->start;
    if (mincore((void *)(map + first * PAGE_BYTES), (size_t)(end - first * PAGE_BYTES), present)) return -1;
    for (int i = 0; i < count; i++) {
        int64_t page = page_of(pieces[i].physical - s->start), stop = page_of(pieces[i].physical + pieces[i].size - 1 - s->start);
        for (; page <= stop; page++) if (!(present[page - first] & 1)) return 0;
    }
    return 1;
}

int hf_journal_look(hf_journal *j, const hf_piece *pieces, int count, const uint8_t **first) {
    hf_segment *s = hf_journal_segment(j, pieces[0].physical);
    const uint8_t *map = s && pieces[0].size > 0 ? map_of(s) : NULL;
    int near = map ? count_near(s, pieces, count) : 0;
    int there = near ? resident(map, s, pieces, near) : -1;
    if (there <= 0) return there;
    *first = map + (pieces[0].physical - s->start);
    return near;
}

int hf_journal_copy(hf_journal *j, const hf_piece *pieces, int count, uint8_t *out) {
    while (count) {
        const uint8_t *first;
        int near = hf_journal_look(j, pieces, count, &first);
        if (near <= 0) return near ? EOPNOTSUPP : EAGAIN;
        for (int i = 0; i < near; i++) out = put_bytes(out, first + (pieces[i].physical - pieces[0].physical), (size_t)pieces[i].size);
        pieces += near;
        count -= near;
    }
    return 0;
}
