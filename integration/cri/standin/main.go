package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "pause":
		pause()
	case "nginx", "httpd":
		err = serve(name)
	case "nnp":
		fmt.Printf("Effective uid: %d\n", os.Geteuid())
	case "ipcs":
		err = ipcs()
	case "pgrep":
		err = pgrep(os.Args[1:])
	default:
		err = fmt.Errorf("unknown name %q", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func pause() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	<-c
}

// serve answers requests. What it is called in the list of processes is part of what is tested.
func serve(name string) error {
	if title := "nginx: master process /usr/sbin/"; !strings.HasPrefix(os.Args[0], title) {
		return syscall.Exec("/usr/sbin/"+name, []string{title + name}, os.Environ())
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "80"
	}
	if err := os.MkdirAll("/var/run", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile("/var/run/nginx.pid", []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		return err
	}
	if name == "httpd" {
		fmt.Println("httpd starts")
	}
	s := &http.Server{Addr: ":" + port, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name == "httpd" {
			fmt.Printf("httpd %s %s\n", r.Method, r.URL.Path)
		}
		if _, err := io.WriteString(w, "<html><head><title>Welcome to nginx!</title></head></html>\n"); err != nil {
			log.Print(err)
		}
	})}
	return s.ListenAndServe()
}

func ipcs() error {
	data, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(data)
	return err
}

// pgrep prints the pids of the processes whose name holds the last argument; none is an error.
func pgrep(args []string) error {
	if len(args) == 0 {
		return errors.New("pgrep: no name")
	}
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return err
	}
	found := false
	for _, n := range names {
		comm, err := os.ReadFile(n)
		if err == nil && strings.Contains(string(comm), args[len(args)-1]) {
			fmt.Println(filepath.Base(filepath.Dir(n)))
			found = true
		}
	}
	if !found {
		os.Exit(1)
	}
	return nil
}
