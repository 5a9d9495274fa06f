// Package telemetry sends the life of containers to an OpenTelemetry collector: one span for the run and one for each
// exec, by OTLP over HTTP in its JSON encoding.
//
// Data in: the log of a container (package report) and where to send it ([Config]). Data out: one POST for each log. A log
// that has arrived has a file [SentFile] beside it, so that what could not be sent is sent later; ids of spans follow
// from the log, so that sending one twice makes no second trace.
//
// The trace is the caller's if the container was created with a traceparent (annotation agentsafe.dev/traceparent, W3C
// Trace Context), and one of its own if not. Command lines are as in the log: without what looks like a secret.
//
// No program that engines start links this. A supervisor starts agentsafectl when a log is complete and the host is
// configured.
//
// Minimum kernel: none. Rejected: the OpenTelemetry SDK (5 ms of start-up and a batch processor, for one request), spans
// while a container runs (a log can be sent again after a crash; a span in memory can't).
package telemetry
