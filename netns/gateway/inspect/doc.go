// Package inspect is what the gateway needs to look into TLS for those rules that judge requests, where the host's
// administrator has turned that on with an authority of their own: the certificates that stand in for the destinations',
// and the checks of a request that go beyond its method and path.
//
// An [Authority] signs one certificate for each name, for its own P-256 key, valid for a day and made again after half of
// it; the table of names is bounded. Who asks for a certificate has decided before that a rule allows the name and that
// its TLS is inspected; this package judges no names. The authority's private key stays in the gateway's memory: the
// process got it by a descriptor, is undumpable, has a uid of its own, and lives outside of the container.
//
// [Check] refuses requests that another program behind the gateway could read differently from how they were judged:
// targets that are no path, and headers that ask for another method or path. [Outward] takes away what must not be passed
// on. Neither looks at a body, nor keeps anything of a request.
//
// Data in: PEM, names, heads of requests as net/http has parsed them. Data out: certificates, an [egress.Decision].
//
// Minimum kernel: none.
//
// Rejected: a key for each certificate (nobody but this process ever has one of them, and it takes 20 µs of the task's
// time); certificates for wildcards (they would be good for names that no rule allows); copying the fields of the
// destination's certificate (a client that looks at more than the name pins it, and must not be fooled); parsing HTTP by
// ourselves in order to pass requests on as they came (what is written anew by one serializer can't be read in two ways,
// which is what smuggling lives on).
package inspect
