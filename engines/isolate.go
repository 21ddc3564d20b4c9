package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"time"
	// Time zones come from the program, if the sandbox hides those of the machine.
	_ "time/tzdata"
)

// memoryLimit makes the collector work before the caller's limit of 128 MiB is reached.
const memoryLimit = 88 << 20

var errNetwork = errors.New("network access is refused")

// isolate takes away the parts of the process that results could depend on.
func isolate() {
	os.Clearenv()
	debug.SetMemoryLimit(memoryLimit)
	time.Local = time.UTC
	http.DefaultTransport = refusingTransport{}
	http.DefaultClient = &http.Client{Transport: refusingTransport{}}
	log.SetOutput(io.Discard)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	// kustomize prints warnings of deprecated fields.
	os.Stderr = nil
}

type refusingTransport struct{}

func (refusingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%w: %s", errNetwork, req.URL.Redacted())
}
