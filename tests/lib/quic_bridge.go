// SPDX-License-Identifier: ISC
// Copyright (c) 2026 The pgbraid authors

// A bridge made of quic-go: each connection to a Unix socket becomes a stream
// of one QUIC connection, bytes unchanged. For scenarios that show that the
// listener can be spoken to without any code of ours.
//
//	quic_bridge ADDRESS CA ALPN SOCKET
//
// Says "ready" once the handshake is done, or why it failed, with status 1.
// ALPN "-" offers none. With KEY_UPDATES in the environment the keys are
// changed often.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"time"
	_ "unsafe" // for linkname

	"github.com/lucas-clemente/quic-go"
)

// Packets between two key updates.
//
//go:linkname keyUpdateInterval github.com/lucas-clemente/quic-go/internal/handshake.KeyUpdateInterval
var keyUpdateInterval uint64

func fail(err error) {
	fmt.Println("failed:", err)
	os.Exit(1)
}

func carry(conn quic.Connection, local *net.UnixConn) {
	stream, err := conn.OpenStreamSync(context.Background())
	if err != nil {
		local.Close()
		return
	}
	go func() {
		if _, err := io.Copy(stream, local); err != nil {
			stream.CancelWrite(2)
			stream.CancelRead(2)
		}
		stream.Close()
	}()
	io.Copy(local, stream)
	local.CloseWrite()
}

func settings(ca, alpn string) *tls.Config {
	pem, err := os.ReadFile(ca)
	if err != nil {
		fail(err)
	}
	out := &tls.Config{ServerName: "localhost", RootCAs: x509.NewCertPool()}
	out.RootCAs.AppendCertsFromPEM(pem)
	if alpn != "-" {
		out.NextProtos = []string{alpn}
	}
	return out
}

func main() {
	if len(os.Args) != 5 {
		fail(fmt.Errorf("usage: quic_bridge ADDRESS CA ALPN SOCKET"))
	}
	if os.Getenv("KEY_UPDATES") != "" {
		keyUpdateInterval = 50
	}
	conn, err := quic.DialAddr(os.Args[1], settings(os.Args[2], os.Args[3]),
		&quic.Config{HandshakeIdleTimeout: 5 * time.Second,
			KeepAlivePeriod: 5 * time.Second})
	if err != nil {
		fail(err)
	}
	at, err := net.Listen("unix", os.Args[4])
	if err != nil {
		fail(err)
	}
	fmt.Println("ready")
	for {
		local, err := at.Accept()
		if err != nil {
			fail(err)
		}
		go carry(conn, local.(*net.UnixConn))
	}
}
