package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// program is the built program. `make interop` sets it.
var program string

func runProgram(t *testing.T, input string, arguments ...string) (string, string, int) {
	t.Helper()
	if program == "" {
		t.Skip("PLEACH_ENGINES is not set: run make interop")
	}
	// The limits of the caller: 128 MiB of data and 1 GiB of addresses.
	script := `ulimit -d 131072; ulimit -v 1048576; exec "$0" "$@"`
	command := exec.Command("/bin/sh", append([]string{"-c", script, program}, arguments...)...)
	command.Env, command.Dir, command.Stdin = []string{}, "/", strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil && command.ProcessState == nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), command.ProcessState.ExitCode()
}

func TestProgramAnswersWithoutEnvironment(t *testing.T) {
	req := &request{Format: format}
	for _, name := range []string{"subcharts", "functions", "hooks", "order", "random"} {
		req.Charts = append(req.Charts, *chartOf(folderFiles(t, "testdata/charts/"+name), `{}`))
	}
	req.Kustomizations = []kustomizationRequest{{"web/overlays/production", folderFiles(t, "testdata/overlays")}}
	input, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := runProgram(t, string(input))
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	_, got, _ := strings.Cut(stdout, `"charts"`)
	_, expected, _ := strings.Cut(answerText(t, req), `"charts"`)
	if got != expected {
		t.Error("the program answers in another way than its functions")
	}
}

func TestProgramRefusesBadRequests(t *testing.T) {
	cases := []struct {
		input     string
		arguments []string
	}{
		{"", nil},
		{"{}", nil},
		{`{"format": 1}`, []string{"--help"}},
	}
	for _, c := range cases {
		stdout, stderr, code := runProgram(t, c.input, c.arguments...)
		if code != exitRequest || stdout != "" || !strings.HasPrefix(stderr, "pleach-engines: ") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q %q: exit code %d: %q %q", c.input, c.arguments, code, stdout, stderr)
		}
	}
}

func TestProgramPrintsItsVersion(t *testing.T) {
	stdout, _, code := runProgram(t, "", "--version")
	if code != 0 || strings.Count(stdout, ".") != 2 || stdout == "0.0.0-dev\n" {
		t.Errorf("exit code %d: %q", code, stdout)
	}
}
