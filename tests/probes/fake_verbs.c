/* An RDMA device in user space, for what happens above the provider: a signalled request completes at once. Preloaded
 * over libibverbs: gcc -O2 -shared -fPIC -o fake_verbs.so fake_verbs.c
 * With FAKE_MOVES payloads are copied, within the process; FAKE_FAILS=N has the Nth request end in status 10, FAKE_SILENT=N
 * none complete from the Nth on, FAKE_REFUSES=N its post be refused; FAKE_PLAIN offers no extended completion queues. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#undef ibv_query_port

enum { RING = 1 << 16, SYNDROME = 0x89 };
/* An extended queue begins as a plain one does. */
struct fake_cq { struct ibv_cq_ex cq; unsigned head, tail; uint64_t wr_ids[RING]; unsigned char statuses[RING]; };

static int moves;
static unsigned long fails, silent, refuses;

static unsigned long number(const char *name)
{
	const char *given = getenv(name);
	return given ? strtoul(given, NULL, 10) : 0;
}

static void move(const struct ibv_send_wr *wr)
{
	char *local = (char *)(uintptr_t)wr->sg_list->addr, *remote = (char *)(uintptr_t)wr->wr.rdma.remote_addr;
	if (wr->opcode == IBV_WR_RDMA_READ)
		memcpy(local, remote, wr->sg_list->length);
	else
		memcpy(remote, local, wr->sg_list->length);
}

static struct ibv_device device = {.name = "fake0"};
static struct ibv_device *devices[] = {&device, NULL};

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_cq *cq = (struct fake_cq *)qp->send_cq;
	/* A fake queue pair's handle counts its requests. */
	for (; wr; wr = wr->next) {
		int status = fails && qp->handle + 1 >= fails ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS;
		qp->handle++;
		if (refuses && qp->handle >= refuses) {
			*bad = wr;
			return ENOMEM;
		}
		if (silent && qp->handle >= silent)
			continue;
		if (moves && !status)
			move(wr);
		if (wr->send_flags & IBV_SEND_SIGNALED) {
			cq->statuses[cq->tail % RING] = (unsigned char)status;
			cq->wr_ids[cq->tail++ % RING] = wr->wr_id;
		}
	}
	return 0;
}

static int poll_cq(struct ibv_cq *given, int most, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)given;
	int found = 0;
	for (; found < most && cq->head != cq->tail; found++) {
		memset(&wc[found], 0, sizeof wc[found]);
		wc[found].status = cq->statuses[cq->head % RING];
		wc[found].vendor_err = wc[found].status ? SYNDROME : 0;
		wc[found].wr_id = cq->wr_ids[cq->head++ % RING];
	}
	return found;
}

static int start_poll(struct ibv_cq_ex *given, struct ibv_poll_cq_attr *attr)
{
	struct fake_cq *cq = (struct fake_cq *)given;
	(void)attr;
	if (cq->head == cq->tail)
		return ENOENT;
	given->status = cq->statuses[cq->head % RING];
	given->wr_id = cq->wr_ids[cq->head++ % RING];
	return 0;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *given) { (void)given; return SYNDROME; }
static void end_poll(struct ibv_cq_ex *given) { (void)given; }

static struct fake_cq *new_cq(struct ibv_context *context, int cqe)
{
	struct fake_cq *cq = calloc(1, sizeof *cq);
	cq->cq.context = context;
	cq->cq.cqe = cqe;
	cq->cq.start_poll = start_poll;
	cq->cq.end_poll = end_poll;
	cq->cq.read_vendor_err = read_vendor_err;
	return cq;
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *init)
{
	return &new_cq(context, init->cqe)->cq;
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t size)
{
	(void)context; (void)input;
	memset(attr, 0, size);
	return 0;
}

struct ibv_device **ibv_get_device_list(int *count) { if (count) *count = 1; return devices; }
void ibv_free_device_list(struct ibv_device **list) { (void)list; }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct verbs_context *whole = calloc(1, sizeof *whole);
	struct ibv_context *context = &whole->context;
	whole->sz = sizeof *whole;
	whole->create_cq_ex = getenv("FAKE_PLAIN") ? NULL : create_cq_ex;
	whole->query_device_ex = query_device_ex;
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->device = d;
	context->ops.post_send = post_send;
	context->ops.poll_cq = poll_cq;
	moves = getenv("FAKE_MOVES") != NULL;
	fails = number("FAKE_FAILS");
	silent = number("FAKE_SILENT");
	refuses = number("FAKE_REFUSES");
	return context;
}
int ibv_close_device(struct ibv_context *context) { free(verbs_get_ctx(context)); return 0; }
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);
	pd->context = context;
	return pd;
}
int ibv_dealloc_pd(struct ibv_pd *pd) { free(pd); return 0; }
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *own, struct ibv_comp_channel *channel, int vector)
{
	(void)own; (void)channel; (void)vector;
	return ibv_cq_ex_to_cq(&new_cq(context, cqe)->cq);
}
int ibv_destroy_cq(struct ibv_cq *cq) { free(cq); return 0; }
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct ibv_qp *qp = calloc(1, sizeof *qp);
	qp->context = pd->context;
	qp->pd = pd;
	qp->send_cq = init->send_cq;
	qp->recv_cq = init->recv_cq;
	qp->qp_num = 1;
	qp->qp_type = init->qp_type;
	return qp;
}
int ibv_destroy_qp(struct ibv_qp *qp) { free(qp); return 0; }
