package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

const patience = 2 * time.Second

func dial(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("dial wants NETWORK ADDR")
	}
	conn, err := net.DialTimeout(args[0], args[1], patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	if strings.HasPrefix(args[0], "udp") {
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := conn.Write([]byte("?")); err != nil {
			return err
		}
		if _, err := conn.Read(make([]byte, 512)); err != nil {
			return err
		}
	}
	fmt.Println("ok")
	return nil
}

func get(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("get wants URL")
	}
	host, path, _ := strings.Cut(strings.TrimPrefix(args[0], "http://"), "/")
	addr := host
	if _, _, err := net.SplitHostPort(host); err != nil {
		addr = net.JoinHostPort(strings.Trim(host, "[]"), "80")
	}
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	fmt.Fprintf(conn, "GET /%s HTTP/1.0\r\nHost: %s\r\n\r\n", path, host)
	br := bufio.NewReader(conn)
	for { // headers end with an empty line
		line, err := br.ReadString('\n')
		if err != nil {
			return err
		}
		if strings.TrimSpace(line) == "" {
			break
		}
	}
	_, err = io.Copy(os.Stdout, br)
	return err
}

func serve(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("serve wants ADDR WORD")
	}
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	u, err := net.ListenPacket("udp", args[0])
	if err != nil {
		return err
	}
	go func() {
		for buf := make([]byte, 512); ; {
			if _, from, err := u.ReadFrom(buf); err == nil {
				_, _ = u.WriteTo([]byte(args[1]), from)
			}
		}
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
				fmt.Fprintf(conn, "HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s\n", len(args[1])+1, args[1])
			}
		}()
	}
}
