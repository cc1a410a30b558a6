/* The loops of a latency measurement: one message outstanding, nothing but polls between it and the next.
 *
 * Interpreted, what follows a poll that finds something is cold code, and costs what it measures a tenth of a microsecond
 * on a fast processor and tens of microseconds on an emulated one. These loops post and poll through the provider's own
 * operations, as <infiniband/verbs.h> inlines them, so nothing is linked; kvdiag_probes.compiled_turns loads and calls
 * them, and kvdiag_probes.turns holds the same loops where this is not compiled.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>

#ifndef KVDIAG_SOURCE
#define KVDIAG_SOURCE ""
#endif

enum result { DONE, WAITING, FAILED, REFUSED, POLL_FAILED };
enum step { AWAIT, POST, TAKE };

/* Mirrored field by field in compiled_turns.py. */
struct turns {
	struct ibv_qp *qp;
	uint64_t local, remote;
	uint8_t *buffer;         /* of a ping-pong: where messages come in, */
	const uint64_t *offsets; /* where each one's last byte will lie, */
	const uint8_t *values;   /* and what that will be */
	uint64_t *began_ns, *ended_ns, *ticks; /* CLOCK_MONOTONIC; ticks are the adapter's stamps */
	uint64_t slice_ns;       /* a call returns when nothing has come for so long */
	uint32_t size, lkey, rkey, opcode, flags, count;
	uint32_t spins, spins_more; /* polls before the processor is offered to others, and from then on */
	uint32_t extended, stamped;
	uint32_t sent, seen, step, untaken, status, vendor_err, error; /* state */
};

const char *kvdiag_turns_source(void) { return KVDIAG_SOURCE; }

static inline uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline int post(struct turns *t)
{
	uint64_t offset = (uint64_t)t->size * t->sent;
	struct ibv_sge part = {.addr = t->local + offset, .length = t->size, .lkey = t->lkey};
	struct ibv_send_wr request = {.wr_id = t->sent, .sg_list = &part, .num_sge = 1, .opcode = t->opcode,
				      .send_flags = t->flags, .imm_data = t->sent};
	struct ibv_send_wr *bad;
	request.wr.rdma.remote_addr = t->remote + offset;
	request.wr.rdma.rkey = t->rkey;
	t->error = (uint32_t)ibv_post_send(t->qp, &request, &bad);
	return !t->error;
}

/* Whether a completion was there; when it was seen, and how it ended, is in *t. */
static inline int take(struct turns *t, uint64_t *seen_ns, uint64_t *ticks)
{
	struct ibv_cq *cq = t->qp->send_cq;
	if (!t->extended) {
		struct ibv_wc found;
		int count = ibv_poll_cq(cq, 1, &found);
		if (count <= 0) {
			t->error = count < 0 ? EIO : 0;
			return 0;
		}
		*seen_ns = now_ns();
		t->status = found.status;
		t->vendor_err = found.vendor_err;
		return 1;
	}
	struct ibv_cq_ex *queue = (struct ibv_cq_ex *)cq;
	struct ibv_poll_cq_attr attr = {0};
	if (ibv_start_poll(queue, &attr))
		return 0;
	*seen_ns = now_ns();
	if (t->stamped)
		*ticks = ibv_wc_read_completion_ts(queue);
	t->status = queue->status;
	if (t->status)
		t->vendor_err = ibv_wc_read_vendor_err(queue);
	ibv_end_poll(queue);
	return 1;
}

/* One turn of waiting: the number of polls until the processor is offered, 0 when the slice is over. */
static inline uint32_t rest(const struct turns *t, uint64_t *since_ns)
{
	uint64_t at = now_ns();
	if (!*since_ns)
		*since_ns = at;
	if (at - *since_ns > t->slice_ns)
		return 0;
	sched_yield();
	return t->spins_more;
}

/* Post each message and take its completion before the next. */
int kvdiag_turns_alone(struct turns *t)
{
	while (t->seen < t->count) {
		uint32_t left = t->spins;
		uint64_t since_ns = 0;
		if (t->sent == t->seen) {
			t->began_ns[t->sent] = now_ns();
			if (!post(t))
				return REFUSED;
			t->sent++;
		}
		while (!take(t, &t->ended_ns[t->seen], &t->ticks[t->seen])) {
			if (t->error)
				return POLL_FAILED;
			if (!--left && !(left = rest(t, &since_ns)))
				return WAITING;
		}
		if (t->status)
			return FAILED;
		t->seen++;
	}
	return DONE;
}

/* Answer each message with the next; who serves sends the first. began_ns holds when each was sent, and of who serves
 * one more, when the last was answered. A completion is taken while the message after it is under way. */
int kvdiag_turns_exchange(struct turns *t)
{
	uint64_t seen_ns, ticks;
	for (;;) {
		uint32_t left = t->spins;
		uint64_t since_ns = 0;
		if (t->step == AWAIT) {
			const volatile uint8_t *last = t->buffer + t->offsets[t->seen];
			while (*last != t->values[t->seen]) {
				if (--left)
					continue;
				/* A message that failed is never answered: its completion says so. */
				if (t->untaken && take(t, &seen_ns, &ticks)) {
					t->untaken--;
					if (t->status)
						return FAILED;
				}
				if (t->error)
					return POLL_FAILED;
				if (!(left = rest(t, &since_ns)))
					return WAITING;
			}
			t->seen++;
			t->step = POST;
		}
		if (t->step == POST) {
			t->began_ns[t->sent] = now_ns();
			if (t->sent < t->count) {
				if (!post(t))
					return REFUSED;
				t->sent++;
				t->untaken++;
			}
			t->step = TAKE;
		}
		/* All of them at the end, before that all but the one under way. */
		uint32_t keep = t->seen == t->count && t->sent == t->count ? 0 : 1;
		left = t->spins;
		since_ns = 0;
		while (t->untaken > keep) {
			if (take(t, &seen_ns, &ticks)) {
				t->untaken--;
				if (t->status)
					return FAILED;
				continue;
			}
			if (t->error)
				return POLL_FAILED;
			if (!--left && !(left = rest(t, &since_ns)))
				return WAITING;
		}
		if (!keep)
			return DONE;
		t->step = AWAIT;
	}
}
