/* The same as reads.py, for what is done for every token; what each part is for is written there. Linux only. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <structmember.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_epoll_pwait2 /* Linux 5.11, the same number on all machines */
#define SYS_epoll_pwait2 441
#endif

enum { KEPT, LOOK, ENDED, EMPTY, RAISED = INT_MIN }; /* an error of the system is -errno */
enum { READ_BYTES = 65536, LATER = 64, MOST_READY = 64 };
#define MAX_AGE_S 1.0
#define STEP_S 1e-4
#define STAMP 35 /* SO_TIMESTAMPNS */

typedef struct { long long base_s; double shift_s, epoch_s; } Clock;

typedef struct {
    PyObject_HEAD
    PyObject *data; /* list of bytes */
    double (*times)[2]; /* (room, 2) stamp and read of each, of which count are used */
    Py_ssize_t count, room;
    double last_stamp_s, last_read_s;
    long long size_bytes, room_bytes;
    int fd, process_stamps, whole, unlooked;
    char quiet, between;
} Reads;

static double monotonic_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec * 1000000000LL + now.tv_nsec) / 1e9;
}

static int reads_init(Reads *self, PyObject *args, PyObject *Py_UNUSED(none)) {
    PyObject *recvmsg, *data;
    if (!PyArg_ParseTuple(args, "OiO!dL", &recvmsg, &self->fd, &PyList_Type, &data, &self->last_stamp_s,
                          &self->room_bytes))
        return -1;
    Py_INCREF(data);
    Py_XSETREF(self->data, data);
    self->last_read_s = self->last_stamp_s;
    return 0;
}

static void reads_dealloc(Reads *self) {
    Py_XDECREF(self->data);
    PyMem_Free(self->times);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int is_chunk(const char *bytes, Py_ssize_t size) {
    Py_ssize_t length = 0, digits = 0;
    for (; digits < size && digits < 4 && Py_ISXDIGIT(bytes[digits]); digits++)
        length = 16 * length + (Py_ISDIGIT(bytes[digits]) ? bytes[digits] - '0' : (bytes[digits] | 32) - 'a' + 10);
    return length && digits + length + 4 == size && memcmp(bytes + digits, "\r\n", 2) == 0;
}

static int keep(Reads *self, PyObject *data, double stamp_s, double read_s) {
    if (self->count == self->room) {
        Py_ssize_t room = self->room ? 2 * self->room : 16;
        void *times = PyMem_Realloc(self->times, room * sizeof *self->times);
        if (times == NULL) {
            PyErr_NoMemory();
            return RAISED;
        }
        self->times = times;
        self->room = room;
    }
    if (PyList_Append(self->data, data) < 0)
        return RAISED;
    if (!(self->last_stamp_s <= stamp_s && stamp_s <= read_s && read_s <= stamp_s + MAX_AGE_S)) {
        stamp_s = read_s;
        self->process_stamps++;
    }
    self->times[self->count][0] = self->last_stamp_s = stamp_s;
    self->times[self->count++][1] = self->last_read_s = read_s;
    const char *bytes = PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data);
    self->size_bytes += size;
    if (self->between && !self->unlooked && self->size_bytes <= self->room_bytes && is_chunk(bytes, size)) {
        self->whole++;
        return KEPT;
    }
    self->unlooked++;
    return !self->quiet || size < 4 || memcmp(bytes + size - 4, "\r\n\r\n", 4) == 0 || self->unlooked >= LATER
                   || self->size_bytes > self->room_bytes
               ? LOOK
               : KEPT;
}

static int receive(Reads *self, const Clock *clock) {
    static char buffer[READ_BYTES];
    char control[CMSG_SPACE(sizeof(struct timespec))];
    struct iovec part = {buffer, sizeof buffer};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(self->fd, &message, 0);
    double read_s = monotonic_s() - clock->epoch_s, stamp_s = NAN;
    if (size <= 0)
        return size == 0 ? ENDED : errno == EAGAIN || errno == EINTR ? EMPTY : -errno;
    struct cmsghdr *stamp = CMSG_FIRSTHDR(&message);
    if (stamp != NULL && stamp->cmsg_level == SOL_SOCKET && stamp->cmsg_type == STAMP) {
        struct timespec at;
        memcpy(&at, CMSG_DATA(stamp), sizeof at);
        stamp_s = (double)(at.tv_sec - clock->base_s) + at.tv_nsec * 1e-9 - clock->shift_s;
    }
    PyObject *data = PyBytes_FromStringAndSize(buffer, size);
    if (data == NULL)
        return RAISED;
    int came = keep(self, data, stamp_s, read_s);
    Py_DECREF(data);
    return came;
}

static PyObject *reads_receive(Reads *self, PyObject *args) {
    Clock clock;
    if (!PyArg_ParseTuple(args, "Ldd", &clock.base_s, &clock.shift_s, &clock.epoch_s))
        return NULL;
    int came = receive(self, &clock);
    return came == RAISED ? NULL : PyLong_FromLong(came);
}

static PyObject *reads_keep(Reads *self, PyObject *args) {
    PyObject *data;
    double stamp_s, read_s;
    if (!PyArg_ParseTuple(args, "Sdd", &data, &stamp_s, &read_s))
        return NULL;
    int came = keep(self, data, stamp_s, read_s);
    return came == RAISED ? NULL : PyLong_FromLong(came);
}

static PyObject *reads_times(Reads *self, PyObject *Py_UNUSED(none)) {
    return PyBytes_FromStringAndSize((char *)self->times, self->count * sizeof *self->times);
}

static PyMethodDef reads_methods[] = {
    {"receive", (PyCFunction)reads_receive, METH_VARARGS, NULL},
    {"keep", (PyCFunction)reads_keep, METH_VARARGS, NULL},
    {"times", (PyCFunction)reads_times, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef reads_members[] = {
    {"last_stamp_s", T_DOUBLE, offsetof(Reads, last_stamp_s), READONLY, NULL},
    {"last_read_s", T_DOUBLE, offsetof(Reads, last_read_s), 0, NULL},
    {"size_bytes", T_LONGLONG, offsetof(Reads, size_bytes), READONLY, NULL},
    {"room_bytes", T_LONGLONG, offsetof(Reads, room_bytes), 0, NULL},
    {"process_stamps", T_INT, offsetof(Reads, process_stamps), READONLY, NULL},
    {"whole", T_INT, offsetof(Reads, whole), 0, NULL},
    {"unlooked", T_INT, offsetof(Reads, unlooked), 0, NULL},
    {"between", T_BOOL, offsetof(Reads, between), 0, NULL},
    {"quiet", T_BOOL, offsetof(Reads, quiet), 0, NULL},
    {NULL},
};

static PyTypeObject ReadsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "backends.client._reads.Reads",
    .tp_basicsize = sizeof(Reads),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)reads_init,
    .tp_dealloc = (destructor)reads_dealloc,
    .tp_methods = reads_methods,
    .tp_members = reads_members,
};

/* Read where that is enough; what needs Python is put into `ready`. -1 with an exception. */
static int take_one(const struct epoll_event *event, PyObject *under_way, const Clock *clock, PyObject *ready) {
    PyObject *key = PyLong_FromLong(event->data.fd);
    PyObject *reads = key && !(event->events & EPOLLOUT) ? PyDict_GetItemWithError(under_way, key) : NULL;
    Py_XDECREF(key);
    int came = PyErr_Occurred() ? RAISED : reads == NULL ? LOOK : receive((Reads *)reads, clock);
    if (came == KEPT || came == EMPTY)
        return 0;
    PyObject *row = NULL;
    if (came != RAISED)
        row = Py_BuildValue("(iIOi)", event->data.fd, event->events, reads ? reads : Py_None, came);
    int failed = row == NULL || PyList_Append(ready, row) < 0;
    Py_XDECREF(row);
    return failed ? -1 : 0;
}

/* Whether the clocks stand to one another as they did, as far as two readings of one around the other tell. */
static int steady(const Clock *clock, double half_s) {
    struct timespec real;
    double before_s = monotonic_s();
    clock_gettime(CLOCK_REALTIME, &real);
    double after_s = monotonic_s();
    double offset_s = (double)(real.tv_sec - clock->base_s) + real.tv_nsec * 1e-9 - (before_s + after_s) / 2;
    return fabs(offset_s + clock->epoch_s - clock->shift_s) <= STEP_S + half_s + (after_s - before_s) / 2;
}

/* To the nanosecond where the kernel can; else to the next millisecond. A negative timeout is for ever. */
static int wait_s(int fd, struct epoll_event *events, int most, double timeout_s) {
    struct timespec left = {(time_t)fmin(timeout_s, 1e6), 0};
    left.tv_nsec = (long)(fmin(timeout_s - left.tv_sec, 0.999999999) * 1e9);
    int count = (int)syscall(SYS_epoll_pwait2, fd, events, most, timeout_s < 0 ? NULL : &left, NULL, 0);
    if (count < 0 && (errno == ENOSYS || errno == EPERM)) /* EPERM: of a container whose rules are older */
        count = epoll_wait(fd, events, most, timeout_s < 0 ? -1 : (int)ceil(fmin(timeout_s, 1e6) * 1e3));
    return count;
}

static PyObject *wait_for(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *under_way, *ready = PyList_New(0);
    Clock clock;
    int fd, loop_fd, most, count = -1, others = 0;
    double half_s, timeout_s;
    if (ready == NULL || !PyArg_ParseTuple(args, "iiO!Ldddid", &fd, &loop_fd, &PyDict_Type, &under_way, &clock.base_s,
                                           &clock.shift_s, &clock.epoch_s, &half_s, &most, &timeout_s))
        goto failed;
    double until_s = monotonic_s() + timeout_s;
    do {
        struct epoll_event events[MOST_READY];
        Py_BEGIN_ALLOW_THREADS
        count = wait_s(fd, events, most < MOST_READY ? most : MOST_READY,
                       timeout_s <= 0 ? timeout_s : fmax(until_s - monotonic_s(), 0));
        Py_END_ALLOW_THREADS
        if ((count > 1 || (count == 1 && events[0].data.fd != loop_fd)) && !steady(&clock, half_s)) {
            Py_DECREF(ready);
            return Py_BuildValue("OO", Py_None, Py_True);
        }
        for (int i = 0; i < count; i++)
            if (events[i].data.fd == loop_fd)
                others = 1; /* they have their turn */
            else if (take_one(&events[i], under_way, &clock, ready) < 0)
                goto failed;
    } while (count > 0 && !others && timeout_s != 0 && PyList_GET_SIZE(ready) == 0);
    return Py_BuildValue("NO", ready, others ? Py_True : Py_False);
failed:
    Py_XDECREF(ready);
    return NULL;
}

static PyMethodDef functions[] = {
    {"wait", wait_for, METH_VARARGS, NULL},
    {NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "backends.client._reads", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reads(void) {
    if (PyType_Ready(&ReadsType) < 0)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddObjectRef(made, "Reads", (PyObject *)&ReadsType) < 0)
        Py_CLEAR(made);
    return made;
}
