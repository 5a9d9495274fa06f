package gateway

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// placeholder is what the task holds in place of a secret.
type placeholder struct {
	text  string
	label string // of the one host that may receive it
}

// validateCredential checks a credential when the gateway starts.
func validateCredential(c *wire.Credential) error {
	kind, name, _ := strings.Cut(c.Present, ":")
	switch {
	case !validLabel(c.Name):
		return errors.New("the name is not one label of a host name")
	case c.Name == "gateway" || c.Name == "proxy":
		return errors.New("the name is taken by the gateway itself")
	case c.Secret == "" || strings.ContainsAny(c.Secret, "\r\n\x00"):
		return errors.New("the secret is empty or has more than one line")
	case c.Port == 0:
		return errors.New("no port")
	case (kind == "header" || kind == "query") && name == "":
		return fmt.Errorf("present: %q names no %s", c.Present, kind)
	case kind != "header" && kind != "query" && c.Present != "bearer" && c.Present != "basic":
		return fmt.Errorf("present: %q is not header:NAME, bearer, basic or query:NAME", c.Present)
	}
	_, err := egress.ParseHost(c.Host)
	return err
}

func validLabel(s string) bool {
	host, err := egress.ParseHost(s + ".x")
	return err == nil && host == s+".x" && !strings.Contains(s, ".")
}

// addCredentials makes a handler for each: the task speaks plain HTTP to NAME.agentsafe.internal, which never leaves the
// container's namespace, and the gateway speaks TLS to the destination, with the secret.
func (w *web) addCredentials() {
	for i := range w.g.config.Credentials {
		c := &w.g.config.Credentials[i]
		w.internal[c.Name] = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.withCredential(rw, r, w.secure, c) })
	}
}

// withCredential passes a request on to the credential's destination. The destination needs no rule: the credential
// names it, and it is reached by this way alone.
func (w *web) withCredential(rw http.ResponseWriter, r *http.Request, transport *http.Transport, c *wire.Credential) {
	s := sessionOf(r)
	if d := w.checkPlaceholders(r, []*wire.Credential{c}); !d.Allowed {
		w.refuse(rw, r, s, d)
		return
	}
	if w.g.shared.Load().withheld[c.Name] {
		w.refuse(rw, r, s, egress.Decision{
			Code: egress.NoRule, Rule: "credential " + c.Name, Reason: "another container of the pod, which shares this network, does not have the credential",
		})
		return
	}
	if d := w.g.policy.Load().Destination(c.Host, c.Port); !d.Allowed {
		w.refuse(rw, r, s, d)
		return
	}
	w.g.identify(s)
	e := s.event("credential").decided(egress.Decision{Allowed: true, Rule: "credential " + c.Name})
	e.Name, e.Port = c.Host, c.Port
	w.g.log.add(e)
	host := c.Host
	if c.Port != 443 {
		host = net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	}
	p := w.proxy(s, transport, func(pr *httputil.ProxyRequest) {
		pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.Host = "https", host, host
		present(c, pr.Out, w.g.shared.Load().placeholders)
	})
	p.ModifyResponse = func(r *http.Response) error {
		conceal(r.Header, c)
		return keepHere(r, host, c.Name+internalZone)
	}
	p.ServeHTTP(rw, r)
}

// keepHere turns a redirection to the credential's destination into one to the local address: followed as it is, it would
// lead past the secret. Others are left alone, and need rules of their own.
func keepHere(r *http.Response, host, local string) error {
	to, err := url.Parse(r.Header.Get("Location"))
	if err == nil && to.Scheme == "https" && (to.Host == host || to.Host == host+":443") {
		to.Scheme, to.Host = "http", local
		r.Header.Set("Location", to.String())
	}
	return nil
}

// present puts the secret where the destination wants it, in place of whatever the task has there.
func present(c *wire.Credential, r *http.Request, placeholders []placeholder) {
	kind, name, _ := strings.Cut(c.Present, ":")
	for key, values := range r.Header {
		if slices.ContainsFunc(values, func(v string) bool { return holdsPlaceholder(v, placeholders) }) {
			r.Header.Del(key)
		}
	}
	switch kind {
	case "header":
		r.Header.Set(name, c.Secret)
	case "bearer":
		r.Header.Set("Authorization", "Bearer "+c.Secret)
	case "basic":
		r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(c.Secret)))
	case "query":
		q := r.URL.Query()
		q.Set(name, c.Secret)
		r.URL.RawQuery = q.Encode()
	}
}

// checkPlaceholders refuses a request with a placeholder of a credential that its destination does not get: somebody tries
// to use the credential elsewhere, or believes to give it away.
func (w *web) checkPlaceholders(r *http.Request, gets []*wire.Credential) egress.Decision {
	if r.Method == http.MethodTrace && len(gets) > 0 {
		return egress.Decision{Code: egress.NoRule, Rule: "credential " + gets[0].Name, Reason: "TRACE to the destination of a credential, whose answer would hold the secret"}
	}
	for _, p := range w.g.shared.Load().placeholders {
		if slices.ContainsFunc(gets, func(c *wire.Credential) bool { return c.Name == p.label }) {
			continue
		}
		found := strings.Contains(r.RequestURI, p.text)
		for _, values := range r.Header {
			for _, v := range values {
				found = found || strings.Contains(v, p.text) || strings.Contains(decodeBasic(v), p.text)
			}
		}
		if found {
			return egress.Decision{Code: egress.DeniedByRule, Rule: "credential " + p.label, Reason: "the placeholder of the credential " + p.label + " was sent to another host"}
		}
	}
	return egress.Decision{Allowed: true}
}

func holdsPlaceholder(header string, placeholders []placeholder) bool {
	return slices.ContainsFunc(placeholders, func(p placeholder) bool { return strings.Contains(header, p.text) })
}

func decodeBasic(header string) string {
	kind, text, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(kind, "basic") {
		return ""
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return ""
	}
	return string(b)
}
