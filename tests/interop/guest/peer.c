/* The kernel's side: verbs on rdma_rxe, driven line by line over a virtio serial port.
 *
 * A line is a word and arguments `name=value`; numbers are decimal or 0x..., GIDs 32 hex digits. The answer is one line,
 * `ok` with results of the same form or `err` with words. Objects are named by small numbers that the driver chooses.
 * All memory is one buffer, named by offsets. Nothing here knows what is being tested: sequences, expectations and
 * waiting for the other side are the driver's. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <rdma/rdma_user_rxe.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { BUF = 4 << 20, MAX = 32, LINE = 1 << 16 };

static struct ibv_context *ctx;
static struct ibv_pd *pds[MAX];
static struct ibv_mr *mrs[MAX];
static struct ibv_mw *mws[MAX];
static struct ibv_cq *cqs[MAX];
static struct ibv_srq *srqs[MAX];
static struct ibv_qp *qps[MAX];
static struct ibv_ah *ahs[MAX];
static uint8_t *buf;
static int port = -1;
static char line[LINE], answer[LINE];

/* ---- the line ---------------------------------------------------------------------------------------------------- */

static void say(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	int n = vsnprintf(answer, sizeof answer - 1, format, list);
	va_end(list);
	if (n > (int)sizeof answer - 2) n = sizeof answer - 2;
	answer[n++] = '\n';
	for (int at = 0; at < n;) {
		int k = write(port, answer + at, n - at);
		if (k < 0 && errno != EAGAIN && errno != EINTR) exit(3);
		if (k > 0) at += k;
	}
}

static void refuse(const char *verb) { say("err %s: %s", verb, strerror(errno)); }

static const char *text(const char *name)
{
	size_t n = strlen(name);
	for (const char *p = line; (p = strchr(p, ' ')); )
		if (!strncmp(++p, name, n) && p[n] == '=') return p + n + 1;
	return NULL;
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *p = text(name);
	return p ? strtoull(p, NULL, 0) : otherwise;
}

static unsigned slot(const char *name)
{
	uint64_t n = number(name, 0);
	return n < MAX ? n : MAX - 1;
}

static union ibv_gid gid_of(const char *name)
{
	union ibv_gid gid = { .raw = { 0 } };
	const char *p = text(name);
	for (int i = 0; p && i < 16; i++) {
		unsigned byte = 0;
		sscanf(p + 2 * i, "%2x", &byte);
		gid.raw[i] = byte;
	}
	return gid;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { MARK = 0xe7 };

static uint64_t state;

static void seed(uint64_t n) { state = n * 0x9e3779b97f4a7c15ull | 1; }

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static int in_range(uint64_t off, uint64_t len)
{
	if (off <= BUF && len <= BUF - off) return 1;
	say("err out of the buffer");
	return 0;
}

static void do_fill(void)
{
	uint64_t off = number("off", 0), len = number("len", 0);
	if (!in_range(off, len)) return;
	if (!text("seed")) {
		memset(buf + off, number("byte", MARK), len);
	} else {
		seed(number("seed", 0));
		for (uint64_t i = 0; i < len; i += 8) {
			uint64_t word = next();
			memcpy(buf + off + i, &word, len - i < 8 ? len - i : 8);
		}
	}
	say("ok");
}

/* The pattern, and `guard` marks on both sides of it. */
static void do_check(void)
{
	uint64_t off = number("off", 0), len = number("len", 0), guard = number("guard", 0);
	if (off < guard || !in_range(off - guard, len + 2 * guard)) return;
	for (uint64_t i = 0; i < guard; i++) {
		if (buf[off - 1 - i] != MARK) { say("err byte %d before the target has changed", (int)i + 1); return; }
		if (buf[off + len + i] != MARK) { say("err byte %d behind the target has changed", (int)i + 1); return; }
	}
	seed(number("seed", 0));
	for (uint64_t i = 0; i < len; i += 8) {
		uint64_t word = next();
		if (memcmp(buf + off + i, &word, len - i < 8 ? len - i : 8)) {
			say("err other bytes near %llu of %llu", (unsigned long long)i, (unsigned long long)len);
			return;
		}
	}
	say("ok");
}

static void do_word(void)
{
	uint64_t off = number("off", 0), word;
	if (!in_range(off, 8)) return;
	if (text("v")) {
		word = number("v", 0);
		memcpy(buf + off, &word, 8);
	}
	memcpy(&word, buf + off, 8);
	say("ok v=%#llx", (unsigned long long)word);
}

static void do_bytes(void)
{
	uint64_t off = number("off", 0), len = number("len", 0);
	char hex[513];
	if (len > 256 || !in_range(off, len)) { if (len > 256) say("err too many"); return; }
	for (uint64_t i = 0; i < len; i++) sprintf(hex + 2 * i, "%02x", buf[off + i]);
	hex[2 * len] = 0;
	say("ok hex=%s", hex);
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

static void do_mr(void)
{
	unsigned n = slot("n"), pd = slot("pd");
	uint64_t off = number("off", 0), len = number("len", BUF);
	if (!in_range(off, len)) return;
	mrs[n] = ibv_reg_mr(pds[pd], buf + off, len, number("acc", 0));
	if (!mrs[n]) { refuse("reg_mr"); return; }
	say("ok lkey=%#x rkey=%#x addr=%#llx", mrs[n]->lkey, mrs[n]->rkey, (unsigned long long)(uintptr_t)(buf + off));
}

static enum ibv_qp_type type_of(void)
{
	const char *p = text("type");
	return !p || p[0] == 'r' ? IBV_QPT_RC : p[1] == 'c' ? IBV_QPT_UC : IBV_QPT_UD;
}

static void do_qp(void)
{
	unsigned n = slot("n");
	struct ibv_qp_init_attr_ex a = {
		.qp_type = type_of(), .send_cq = cqs[slot("scq")], .recv_cq = cqs[slot("rcq")], .pd = pds[slot("pd")],
		.srq = text("srq") ? srqs[slot("srq")] : NULL,
		.cap = { .max_send_wr = number("swr", 64), .max_recv_wr = number("rwr", 64), .max_send_sge = 2,
			 .max_recv_sge = 2, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD };
	if (number("ex", 0)) {
		a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		a.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE;
	}
	qps[n] = ibv_create_qp_ex(ctx, &a);
	if (!qps[n]) { refuse("create_qp"); return; }
	say("ok qpn=%#x", qps[n]->qp_num);
}

static struct ibv_ah_attr av(void)
{
	return (struct ibv_ah_attr){ .is_global = 1, .port_num = 1,
		.grh = { .dgid = gid_of("gid"), .sgid_index = number("sgid", 1), .hop_limit = 64,
			 .traffic_class = number("tc", 0) } };
}

/* One step of the state machine; `type` says of which. */
static void do_modify(void)
{
	struct ibv_qp_attr a = { 0 };
	struct ibv_qp *qp = qps[slot("n")];
	enum ibv_qp_type type = type_of();
	const char *to = text("to");
	int mask = IBV_QP_STATE;
	if (!qp || !to) { say("err no such queue pair"); return; }
	if (!strncmp(to, "init", 4)) {
		a.qp_state = IBV_QPS_INIT;
		a.port_num = 1;
		a.qp_access_flags = number("acc", 0);
		a.qkey = number("qkey", 0);
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	} else if (!strncmp(to, "rtr", 3)) {
		a.qp_state = IBV_QPS_RTR;
		a.path_mtu = number("mtu", 3);
		a.dest_qp_num = number("dqpn", 0);
		a.rq_psn = number("psn", 0);
		a.max_dest_rd_atomic = number("rd", 4);
		a.min_rnr_timer = number("rnrtimer", 12);
		if (type != IBV_QPT_UD) {
			a.ah_attr = av();
			mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		}
		if (type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	} else if (!strncmp(to, "rts", 3)) {
		a.qp_state = IBV_QPS_RTS;
		a.sq_psn = number("psn", 0);
		a.timeout = number("timeout", 17);
		a.retry_cnt = number("retry", 7);
		a.rnr_retry = number("rnr", 7);
		a.max_rd_atomic = number("rd", 4);
		mask |= IBV_QP_SQ_PSN;
		if (type == IBV_QPT_RC)
			mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	} else {
		a.qp_state = IBV_QPS_ERR;
	}
	if ((errno = ibv_modify_qp(qp, &a, mask))) { refuse("modify_qp"); return; }
	say("ok");
}

static void do_query(void)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr ia;
	if ((errno = ibv_query_qp(qps[slot("n")], &a, IBV_QP_STATE, &ia))) { refuse("query_qp"); return; }
	say("ok state=%d", a.qp_state);
}

static void do_bind(void)
{
	struct ibv_mw *mw = mws[slot("mw")];
	struct ibv_mr *mr = mrs[slot("mr")];
	struct ibv_qp *qp = qps[slot("qp")];
	struct ibv_mw_bind_info info = { .mr = mr, .addr = (uintptr_t)buf + number("off", 0), .length = number("len", 0),
					 .mw_access_flags = number("acc", 0) };
	if (mw->type == IBV_MW_TYPE_1) {
		struct ibv_mw_bind bind = { .wr_id = number("id", 0), .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
		if ((errno = ibv_bind_mw(qp, mw, &bind))) { refuse("bind_mw"); return; }
		say("ok rkey=%#x", mw->rkey);
		return;
	}
	struct ibv_send_wr wr = { .wr_id = number("id", 0), .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = info;
	if ((errno = ibv_post_send(qp, &wr, &bad))) { refuse("post_send"); return; }
	mw->rkey = wr.bind_mw.rkey;
	say("ok rkey=%#x", mw->rkey);
}

/* As a program does that joins through rdma_cm: the group's address belongs to the IP layer too. */
static void do_join(void)
{
	union ibv_gid gid = gid_of("gid");
	int s, failed;
	if (gid.raw[0] == 0xff) {
		struct ipv6_mreq group = { .ipv6mr_interface = if_nametoindex("eth0") };
		memcpy(&group.ipv6mr_multiaddr, gid.raw, 16);
		s = socket(AF_INET6, SOCK_DGRAM, 0);
		failed = setsockopt(s, IPPROTO_IPV6, IPV6_JOIN_GROUP, &group, sizeof group);
	} else {
		struct ip_mreqn group = { .imr_ifindex = if_nametoindex("eth0") };
		memcpy(&group.imr_multiaddr, gid.raw + 12, 4);
		s = socket(AF_INET, SOCK_DGRAM, 0);
		failed = setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group);
	}
	/* The socket stays open as long as the membership is to last: until this process ends. */
	if (failed && errno != EADDRINUSE) { refuse("join"); return; }
	if ((errno = ibv_attach_mcast(qps[slot("qp")], &gid, 0))) { refuse("attach_mcast"); return; }
	say("ok");
}

static void free_all(void)
{
	/* Windows first: the driver waits for ever when a queue pair goes that one is bound to. */
	for (int i = 0; i < MAX; i++) if (mws[i]) { ibv_dealloc_mw(mws[i]); mws[i] = NULL; }
	for (int i = 0; i < MAX; i++) if (qps[i]) { ibv_destroy_qp(qps[i]); qps[i] = NULL; }
	for (int i = 0; i < MAX; i++) if (ahs[i]) { ibv_destroy_ah(ahs[i]); ahs[i] = NULL; }
	for (int i = 0; i < MAX; i++) if (srqs[i]) { ibv_destroy_srq(srqs[i]); srqs[i] = NULL; }
	for (int i = 0; i < MAX; i++) if (cqs[i]) { ibv_destroy_cq(cqs[i]); cqs[i] = NULL; }
	for (int i = 1; i < MAX; i++) if (mrs[i]) { ibv_dereg_mr(mrs[i]); mrs[i] = NULL; }
	for (int i = 1; i < MAX; i++) if (pds[i]) { ibv_dealloc_pd(pds[i]); pds[i] = NULL; }
}

/* ---- work requests ----------------------------------------------------------------------------------------------- */

static void do_recv(void)
{
	uint64_t off = number("off", 0), len = number("len", 0);
	if (!in_range(off, len)) return;
	struct ibv_sge sge = { (uintptr_t)buf + off, len, mrs[slot("mr")]->lkey };
	struct ibv_recv_wr wr = { .wr_id = number("id", 0), .sg_list = &sge, .num_sge = len ? 1 : 0 }, *bad;
	errno = text("srq") ? ibv_post_srq_recv(srqs[slot("srq")], &wr, &bad) : ibv_post_recv(qps[slot("qp")], &wr, &bad);
	if (errno) { refuse("post_recv"); return; }
	say("ok");
}

/* The library of Debian 12 knows no FLUSH: a WRITE is staged, found in the send queue, which is shared with the kernel,
 * and made into a FLUSH of the kernel's interface before the doorbell rings. */
static int flush(struct ibv_qp *qp)
{
	const uint64_t mark = 0x1122334455667788ull;
	const uint32_t key = 0xfeedf00d;
	uint64_t va = number("raddr", 0);
	uint32_t len = number("rlen", 0);
	struct { uint64_t va; uint32_t len, rkey; uint8_t type, level; } f =
		{ va, len, number("rkey", 0), number("place", 1), 0 };
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	char map[512];
	unsigned long from, to;
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	ibv_wr_start(ex);
	ex->wr_id = number("id", 0);
	ex->wr_flags = number("fl", IBV_SEND_SIGNALED);
	ibv_wr_rdma_write(ex, key, mark);
	while (maps && fgets(map, sizeof map, maps)) {
		if (!strstr(map, "uverbs") || sscanf(map, "%lx-%lx", &from, &to) != 2) continue;
		for (unsigned long p = from; p + sizeof(struct rxe_send_wqe) <= to; p += 8) {
			struct rxe_send_wqe *wqe = (void *)p;
			if (wqe->wr.wr.rdma.remote_addr != mark || wqe->wr.wr.rdma.rkey != key) continue;
			wqe->wr.opcode = 14;
			memcpy(&wqe->wr.wr, &f, 18);
			wqe->iova = va;
			wqe->dma.length = wqe->dma.resid = len;
			found = 1;
		}
	}
	if (maps) fclose(maps);
	if (!found) { ibv_wr_abort(ex); return ENOENT; }
	return ibv_wr_complete(ex);
}

static void do_send(void)
{
	static const struct { const char *name; int op; } ops[] = {
		{ "send_imm", IBV_WR_SEND_WITH_IMM }, { "send_inv", IBV_WR_SEND_WITH_INV }, { "send", IBV_WR_SEND },
		{ "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM }, { "write", IBV_WR_RDMA_WRITE }, { "read", IBV_WR_RDMA_READ },
		{ "cas", IBV_WR_ATOMIC_CMP_AND_SWP }, { "faa", IBV_WR_ATOMIC_FETCH_AND_ADD }, { "local_inv", IBV_WR_LOCAL_INV },
		{ "atomic_write", -1 }, { "flush", -2 } };
	uint64_t off = number("off", 0), len = number("len", 0);
	struct ibv_qp *qp = qps[slot("qp")];
	const char *name = text("op");
	int op = -3;
	if (!in_range(off, len) || !name || !qp) return;
	for (unsigned i = 0; i < sizeof ops / sizeof *ops; i++) {
		size_t n = strlen(ops[i].name);
		if (!strncmp(name, ops[i].name, n) && (name[n] == ' ' || !name[n])) { op = ops[i].op; break; }
	}
	if (op == -3) { say("err no such operation"); return; }
	if (op == -1) {
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
		ibv_wr_start(ex);
		ex->wr_id = number("id", 0);
		ex->wr_flags = number("fl", IBV_SEND_SIGNALED);
		ibv_wr_atomic_write(ex, number("rkey", 0), number("raddr", 0), buf + off);
		errno = ibv_wr_complete(ex);
	} else if (op == -2) {
		errno = flush(qp);
	} else {
		struct ibv_sge sge = { (uintptr_t)buf + off, len, mrs[slot("mr")]->lkey };
		struct ibv_send_wr wr = { .wr_id = number("id", 0), .opcode = op, .sg_list = &sge, .num_sge = len ? 1 : 0,
					  .send_flags = number("fl", IBV_SEND_SIGNALED) }, *bad;
		if (op == IBV_WR_SEND_WITH_INV || op == IBV_WR_LOCAL_INV) wr.invalidate_rkey = number("inv", 0);
		else wr.imm_data = htonl(number("imm", 0));
		if (text("ah")) {
			wr.wr.ud.ah = ahs[slot("ah")];
			wr.wr.ud.remote_qpn = number("dqpn", 0);
			wr.wr.ud.remote_qkey = number("qkey", 0);
		} else if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr.wr.atomic.remote_addr = number("raddr", 0);
			wr.wr.atomic.rkey = number("rkey", 0);
			wr.wr.atomic.compare_add = number("cmp", 0);
			wr.wr.atomic.swap = number("swp", 0);
		} else {
			wr.wr.rdma.remote_addr = number("raddr", 0);
			wr.wr.rdma.rkey = number("rkey", 0);
		}
		errno = ibv_post_send(qp, &wr, &bad);
	}
	if (errno) { refuse("post_send"); return; }
	say("ok");
}

static void do_wait(void)
{
	struct ibv_cq *cq = cqs[slot("cq")];
	struct ibv_wc w;
	struct timespec begin, now;
	long ms = number("ms", 0);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (;;) {
		int n = ibv_poll_cq(cq, 1, &w);
		if (n < 0) { say("err poll_cq"); return; }
		if (n) break;
		clock_gettime(CLOCK_MONOTONIC, &now);
		if ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 >= ms) { say("ok none=1"); return; }
		usleep(100);
	}
	say("ok id=%llu status=%d opcode=%d len=%u flags=%#x imm=%#x inv=%#x qpn=%#x src=%#x", (unsigned long long)w.wr_id,
	    w.status, w.opcode, w.byte_len, w.wc_flags, ntohl(w.imm_data), w.invalidated_rkey, w.qp_num, w.src_qp);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static void do_counters(void)
{
	static const char dir[] = "/sys/class/infiniband/rxe0/ports/1/hw_counters";
	char all[4096] = "", path[512];
	DIR *d = opendir(dir);
	struct dirent *e;
	while (d && (e = readdir(d))) {
		unsigned long long v;
		if (e->d_name[0] == '.') continue;
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		FILE *f = fopen(path, "r");
		if (f && fscanf(f, "%llu", &v) == 1)
			snprintf(all + strlen(all), sizeof all - strlen(all), " %s=%llu", e->d_name, v);
		if (f) fclose(f);
	}
	if (d) closedir(d);
	say("ok%s", all);
}

/* A command of the shell; its output with blanks and new lines escaped. */
static void do_sh(void)
{
	static char out[LINE / 2];
	const char *command = text("cmd");
	FILE *f = command ? popen(command, "r") : NULL;
	size_t n = 0;
	int c;
	if (!f) { refuse("popen"); return; }
	while ((c = fgetc(f)) != EOF)
		if (n + 4 < sizeof out) n += c <= ' ' || c == '%' ? sprintf(out + n, "%%%02x", c) : sprintf(out + n, "%c", c);
	out[n] = 0;
	int status = pclose(f);
	say("ok rc=%d out=%s", WIFEXITED(status) ? WEXITSTATUS(status) : 255, out);
}

static void do_hello(void)
{
	struct utsname u;
	union ibv_gid g[3];
	char hex[3][33];
	struct ibv_port_attr p;
	uname(&u);
	for (int i = 0; i < 3; i++) {
		if (ibv_query_gid(ctx, 1, i, &g[i])) { refuse("query_gid"); return; }
		for (int k = 0; k < 16; k++) sprintf(hex[i] + 2 * k, "%02x", g[i].raw[k]);
	}
	if (ibv_query_port(ctx, 1, &p)) { refuse("query_port"); return; }
	say("ok kernel=%s addr=%#llx len=%d lkey=%#x rkey=%#x gid0=%s gid1=%s gid2=%s mtu=%d flush=%d", u.release,
	    (unsigned long long)(uintptr_t)buf, BUF, mrs[0]->lkey, mrs[0]->rkey, hex[0], hex[1], hex[2], p.active_mtu,
	    number("flush", 0) ? 1 : 0);
}

static int is(const char *word)
{
	size_t n = strlen(word);
	return !strncmp(line, word, n) && (line[n] == ' ' || !line[n]);
}

static void serve(void)
{
	unsigned n = slot("n");
	if (is("hello")) do_hello();
	else if (is("fill")) do_fill();
	else if (is("check")) do_check();
	else if (is("word")) do_word();
	else if (is("bytes")) do_bytes();
	else if (is("pd")) { if ((pds[n] = ibv_alloc_pd(ctx))) say("ok"); else refuse("alloc_pd"); }
	else if (is("mr")) do_mr();
	else if (is("cq")) { if ((cqs[n] = ibv_create_cq(ctx, number("depth", 256), NULL, NULL, 0))) say("ok"); else refuse("create_cq"); }
	else if (is("srq")) {
		struct ibv_srq_init_attr a = { .attr = { .max_wr = number("wr", 64), .max_sge = 1 } };
		if ((srqs[n] = ibv_create_srq(pds[slot("pd")], &a))) say("ok"); else refuse("create_srq");
	}
	else if (is("qp")) do_qp();
	else if (is("modify")) do_modify();
	else if (is("query")) do_query();
	else if (is("destroy")) {
		if (!qps[n] || (errno = ibv_destroy_qp(qps[n]))) { refuse("destroy_qp"); return; }
		qps[n] = NULL;
		say("ok");
	}
	else if (is("mw")) {
		if (mws[n]) ibv_dealloc_mw(mws[n]);
		mws[n] = ibv_alloc_mw(pds[slot("pd")], number("kind", 2) == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		if (mws[n]) say("ok rkey=%#x", mws[n]->rkey); else refuse("alloc_mw");
	}
	else if (is("bind")) do_bind();
	else if (is("ah")) {
		struct ibv_ah_attr a = av();
		if ((ahs[n] = ibv_create_ah(pds[slot("pd")], &a))) say("ok"); else refuse("create_ah");
	}
	else if (is("join")) do_join();
	else if (is("recv")) do_recv();
	else if (is("send")) do_send();
	else if (is("wait")) do_wait();
	else if (is("reset")) { free_all(); say("ok"); }
	else if (is("counters")) do_counters();
	else if (is("sh")) do_sh();
	else if (is("die")) raise(SIGKILL);
	else if (is("off")) { close(open("/run/off", O_CREAT | O_WRONLY, 0600)); say("ok"); exit(0); }
	else say("err no such word");
}

static int open_port(void)
{
	for (int i = 0; i < 200; i++) {
		DIR *d = opendir("/sys/class/virtio-ports");
		struct dirent *e;
		while (d && (e = readdir(d))) {
			char path[600], name[64] = "";
			snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", e->d_name);
			FILE *f = fopen(path, "r");
			if (!f) continue;
			if (fgets(name, sizeof name, f) && !strncmp(name, "softroce.ctl", 12)) {
				snprintf(path, sizeof path, "/dev/%s", e->d_name);
				int fd = open(path, O_RDWR | O_CLOEXEC);
				if (fd >= 0) { fclose(f); closedir(d); return fd; }
			}
			fclose(f);
		}
		if (d) closedir(d);
		usleep(50000);
	}
	return -1;
}

int main(void)
{
	int n = 0, count;
	port = open_port();
	if (port < 0) { fprintf(stderr, "peer: no control port\n"); return 1; }
	for (int i = 0; i < 100 && !ctx; i++) {
		struct ibv_device **list = ibv_get_device_list(&count);
		for (int k = 0; list && k < count; k++)
			if (!strcmp(ibv_get_device_name(list[k]), "rxe0")) ctx = ibv_open_device(list[k]);
		if (list) ibv_free_device_list(list);
		if (!ctx) usleep(50000);
	}
	buf = aligned_alloc(4096, BUF);
	if (!ctx || !buf) { fprintf(stderr, "peer: no rxe0\n"); return 1; }
	memset(buf, 0, BUF);
	pds[0] = ibv_alloc_pd(ctx);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC |
		     IBV_ACCESS_MW_BIND;
	if (pds[0]) {
		/* Kernels from 6.2 on have FLUSH, with rights of its own. */
		mrs[0] = ibv_reg_mr(pds[0], buf, BUF, access | 1 << 8);
		if (!mrs[0]) mrs[0] = ibv_reg_mr(pds[0], buf, BUF, access);
	}
	if (!mrs[0]) { fprintf(stderr, "peer: no memory region\n"); return 1; }
	say("ready");
	for (;;) {
		/* One line is answered before the next is sent. */
		int k = read(port, line + n, LINE - 1 - n);
		if (k <= 0) { usleep(20000); continue; }
		n += k;
		if (line[n - 1] != '\n') { if (n == LINE - 1) n = 0; continue; }
		line[n - 1] = 0;
		n = 0;
		serve();
	}
}
