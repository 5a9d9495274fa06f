package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/metrics"
	"github.com/agentsafe/agentsafe/cmd/agentsafectl/telemetry"
	"github.com/agentsafe/agentsafe/runtime/supervise"
)

func newTelemetryCommand(p *paths) *cobra.Command {
	a := &auditFlags{paths: p}
	var config string
	var pending bool
	c := &cobra.Command{
		Use:   "telemetry [LOG...]",
		Short: "Send logs to an OpenTelemetry collector, a span for the run and one for each exec",
		Long: `Send complete logs to an OpenTelemetry collector (OTLP over HTTP, JSON), those that
have not been sent. With ` + supervise.TelemetryConfig + `
{"endpoint": "http://127.0.0.1:4318/v1/traces", "headers": {...}, "service": "..."}
every log is sent when it is complete; --pending sends what could not be.`,
		RunE: func(c *cobra.Command, args []string) error {
			conf, err := telemetry.Load(config)
			if err != nil {
				return err
			}
			if pending == (len(args) > 0) {
				return errors.New("telemetry: name logs, or --pending")
			}
			var dirs []string
			if pending {
				if dirs, err = filepath.Glob(filepath.Join(p.data, evidenceName, "*", "*")); err != nil {
					return err
				}
			}
			for _, name := range args {
				dir, err := a.find(name)
				if err != nil {
					return err
				}
				dirs = append(dirs, dir)
			}
			var errs []error
			for _, dir := range dirs {
				done, err := telemetry.Send(c.Context(), conf, dir)
				switch {
				case err != nil:
					errs = append(errs, fmt.Errorf("%s: %w", dir, err))
				case !done && !pending:
					errs = append(errs, fmt.Errorf("%s: the container runs, or its supervisor did not finish", dir))
				}
			}
			return errors.Join(errs...)
		},
	}
	c.Flags().StringVar(&config, "config", supervise.TelemetryConfig, "configuration `file`")
	c.Flags().BoolVar(&pending, "pending", false, "send every complete log that has not been sent")
	return c
}

func newMetricsCommand(p *paths) *cobra.Command {
	var listen string
	c := &cobra.Command{
		Use:   "metrics",
		Short: "Print what this host's containers use and which limits they have met, for Prometheus",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if listen == "" {
				return metrics.Write(c.OutOrStdout(), []string{p.state})
			}
			ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			return serveMetrics(ctx, listen, []string{p.state})
		},
	}
	c.Flags().StringVar(&listen, "listen", "", "serve them at `unix:/PATH` (mode 0600) or 127.0.0.1:PORT, under /metrics")
	return c
}

// serveMetrics serves until ctx ends.
func serveMetrics(ctx context.Context, address string, roots []string) error {
	l, err := listenMetrics(address)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metrics.ContentType)
		if err := metrics.Write(w, roots); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	const headerTimeout = 10 * time.Second
	h := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	defer context.AfterFunc(ctx, func() { h.Close() })()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listenMetrics listens on a socket of root's, or on a loopback address.
func listenMetrics(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		l, err := net.Listen("unix", path) //nolint:noctx // it does not block
		if err != nil {
			return nil, err
		}
		if err := os.Chmod(path, 0o600); err != nil { //nolint:forbidigo // a path of the host's
			return nil, errors.Join(err, l.Close())
		}
		return l, nil
	}
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	if !addr.IP.IsLoopback() {
		return nil, fmt.Errorf("%s: not a loopback address", address)
	}
	return net.ListenTCP("tcp", addr)
}
