// Package signals lets a program that lives for milliseconds forward what signals it gets: from Open on, each is one byte
// in a pipe.
//
// os/signal does the same, but switches between two threads for each signal that it is asked for, some hundred times for
// all of them, and then keeps both: together a twentieth of what it takes to run a container. The handler here is a few
// instructions that write to the pipe; it is no Go code and touches nothing of the Go runtime.
//
// Data out: numbers of signals. A signal that arrives while the pipe is full is lost, as with os/signal. A child process
// begins with the default action of each, as execve(2) does it.
//
// It leaves alone what the Go runtime needs itself (faults, SIGURG, SIGPROF) and SIGCHLD and SIGPIPE, which nobody forwards.
// It must not be mixed with os/signal for the same signals.
//
// Minimum kernel: 5.15.
//
// Rejected: signalfd(2), since a signal must be blocked in all threads for that, and the Go runtime has started some
// before main; asking os/signal for a few signals alone, since a container's init may take any of them as a request.
package signals
