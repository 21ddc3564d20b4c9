// Program pleach-engines renders Helm charts and kustomize overlays. It reads one JSON request
// from stdin and writes one JSON answer to stdout. The answer depends on nothing else: not on
// files, network, clock, environment or chance.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// version is set by the linker.
var version = "0.0.0-dev"

// maxAnswer limits the bytes of an answer.
const maxAnswer = 64 << 20

// Exit codes.
const (
	exitRequest = 2
	exitAnswer  = 3
)

var errTooLarge = errors.New("the answer is larger than 64 MiB")

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(version)
		return
	}
	stderr := os.Stderr
	if len(os.Args) > 1 {
		fail(stderr, exitRequest, errors.New("takes no arguments but --version; a request is read from stdin"))
	}
	isolate()
	input := bufio.NewReader(os.Stdin)
	_, _ = input.Peek(1) // waits for the request; readRequest reports an error
	limitMemory()
	req, err := readRequest(input)
	if err != nil {
		fail(stderr, exitRequest, err)
	}
	if err := writeAnswer(os.Stdout, req, maxAnswer); err != nil {
		fail(stderr, exitAnswer, err)
	}
}

func fail(stderr io.Writer, code int, err error) {
	fmt.Fprintln(stderr, "pleach-engines:", err)
	os.Exit(code)
}

func readRequest(in io.Reader) (*request, error) {
	decoder := json.NewDecoder(in)
	req := new(request)
	if err := decoder.Decode(req); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	if req.Format != format {
		return nil, fmt.Errorf("read the request: expected format %d, got %d", format, req.Format)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("read the request: expected one JSON value")
	}
	return req, nil
}

// writeAnswer renders and writes one item after the other, so that only one is in memory.
func writeAnswer(out io.Writer, req *request, limit int) error {
	buffered := bufio.NewWriter(&limitedWriter{out: out, left: limit})
	head, err := json.Marshal(version)
	if err != nil {
		return err
	}
	fmt.Fprintf(buffered, `{"format":%d,"engines":%s,"charts":[`, format, head)
	for i := range req.Charts {
		answer := renderChart(&req.Charts[i])
		req.Charts[i] = chartRequest{}
		if err := writeChart(buffered, i, answer); err != nil {
			return err
		}
	}
	fmt.Fprint(buffered, `],"kustomizations":[`)
	for i := range req.Kustomizations {
		answer := renderKustomization(&req.Kustomizations[i])
		req.Kustomizations[i] = kustomizationRequest{}
		if err := writeItem(buffered, i, answer); err != nil {
			return err
		}
	}
	fmt.Fprintln(buffered, "]}")
	return buffered.Flush()
}

// writeChart encodes documents one by one, since a chart can have many.
func writeChart(out *bufio.Writer, index int, answer *chartAnswer) error {
	if index > 0 {
		if err := out.WriteByte(','); err != nil {
			return err
		}
	}
	fmt.Fprint(out, `{"documents":[`)
	for i := range answer.Documents {
		if err := writeItem(out, i, answer.Documents[i]); err != nil {
			return err
		}
		answer.Documents[i] = document{}
	}
	fmt.Fprint(out, `],"crds":[`)
	for i := range answer.CRDs {
		if err := writeItem(out, i, answer.CRDs[i]); err != nil {
			return err
		}
		answer.CRDs[i] = crd{}
	}
	fmt.Fprint(out, `],`)
	rest, err := json.Marshal(answer.chartNotes)
	if err != nil {
		return err
	}
	// The fields follow those that are written.
	_, err = out.Write(append(rest[1:], '\n'))
	return err
}

func writeItem(out *bufio.Writer, index int, item any) error {
	if index > 0 {
		if err := out.WriteByte(','); err != nil {
			return err
		}
	}
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(item)
}

type limitedWriter struct {
	out  io.Writer
	left int
}

func (w *limitedWriter) Write(data []byte) (int, error) {
	if len(data) > w.left {
		return 0, errTooLarge
	}
	w.left -= len(data)
	return w.out.Write(data)
}
