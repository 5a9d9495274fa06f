// Agentsafe-monitor supervises one container whose creator does not stay: `agentsafe create` starts it when the
// container's profile has rules that somebody has to enforce while the container lives (a time limit, a gateway,
// transactions, evidence), before the container's own program can run. It outlives create and every engine, and ends
// when the container is deleted.
//
// Nobody calls it directly: standard input is the socket on which it is told what to do (package
// runtime/supervise/wire); all else is in package runtime/supervise.
//
// There is one for each such container, so its memory counts: it reads no configuration, and what is heavy is not linked
// into it.
package main
