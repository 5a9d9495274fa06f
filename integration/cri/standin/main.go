package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
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

func serve(name string) error {
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
