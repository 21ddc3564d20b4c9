package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestOverlaysEqualKustomize(t *testing.T) {
	folder := "testdata/overlays"
	files := folderFiles(t, folder)
	for _, path := range []string{"web/base", "web/overlays/production", "web/overlays/production/extra", "legacy"} {
		answer := renderKustomization(&kustomizationRequest{Path: path, Files: files})
		if len(answer.Errors) > 0 {
			t.Errorf("%s: %+v", path, answer.Errors)
			continue
		}
		stdout, stderr, err := referee(t, folder, "kustomize", "build", path)
		if err != nil {
			t.Fatalf("%s: kustomize: %v: %s", path, err, stderr)
		}
		if answer.Text != stdout {
			t.Errorf("%s:\n--- expected, of kustomize:\n%s\n--- got:\n%s", path, stdout, answer.Text)
		}
	}
}

func TestOverlaysAreRefused(t *testing.T) {
	address, connections := listen(t)
	link := "http://" + address + "/a.yaml"
	inline := "generators:\n- |\n  apiVersion: %s\n  kind: %s\n  metadata: {name: a}\n"
	cases := []struct {
		name, text  string
		code, field string
		line        int
	}{
		{"file by HTTP", "resources:\n- a.yaml\n- " + link, codeRemote, "resources[1]", 3},
		{"base by HTTP", "bases: [" + link + "]", codeRemote, "bases[0]", 1},
		{"component", "components:\n- https://" + address + "/org/repo?ref=main", codeRemote, "components[0]", 2},
		{"short GitHub", "resources:\n- github.com/org/repo/base", codeRemote, "resources[0]", 2},
		{"scp", "resources:\n- git@" + address + ":org/repo", codeRemote, "resources[0]", 2},
		{"forced git", "resources:\n- git::https://" + address + "/org/repo", codeRemote, "resources[0]", 2},
		{"ssh", "resources:\n- ssh://git@" + address + "/org/repo", codeRemote, "resources[0]", 2},
		{"file scheme", "resources:\n- file:///etc", codeRemote, "resources[0]", 2},
		{"crds", "crds:\n- " + link, codeRemote, "crds[0]", 2},
		{"configurations", "configurations:\n- " + link, codeRemote, "configurations[0]", 2},
		{"openapi", "openapi:\n  path: " + link, codeRemote, "openapi.path", 2},
		{"patch", "patches:\n- path: " + link, codeRemote, "patches[0].path", 2},
		{"JSON patch", "patchesJson6902:\n- path: " + link, codeRemote, "patchesJson6902[0].path", 2},
		{"merge patch", "patchesStrategicMerge:\n- " + link, codeRemote, "patchesStrategicMerge[0]", 2},
		{"replacement", "replacements:\n- path: " + link, codeRemote, "replacements[0].path", 2},
		{"generated file", "configMapGenerator:\n- name: a\n  files:\n  - " + link, codeRemote, "configMapGenerator[0].files[0]", 4},
		{"generated file with key", "secretGenerator:\n- name: a\n  files:\n  - k=" + link, codeRemote, "secretGenerator[0].files[0]", 4},
		{"environment file", "secretGenerator:\n- name: a\n  envs:\n  - " + link, codeRemote, "secretGenerator[0].envs[0]", 4},
		{"old environment file", "secretGenerator:\n- name: a\n  env: " + link, codeRemote, "secretGenerator[0].env", 3},
		{"anchor", "namePrefix: &a " + link + "\nresources:\n- *a", codeRemote, "resources[0]", 1},
		{"transformer", "transformers:\n- " + link, codeRemote, "transformers[0]", 2},
		{"absolute", "resources:\n- /etc/passwd", codeOutside, "resources[0]", 2},
		{"climbing", "resources:\n- ../../../etc/passwd", codeOutside, "resources[0]", 2},
		{"climbing patch", "patches:\n- path: ../../x", codeOutside, "patches[0].path", 2},
		{"absent", "resources:\n- absent.yaml", codeOutside, "resources[0]", 2},
		{"helm", "helmCharts:\n- name: a", codePlugin, "helmCharts", 1},
		{"old helm", "helmChartInflationGenerator:\n- chartName: a", codePlugin, "helmChartInflationGenerator", 1},
		{"builtin helm", fmt.Sprintf(inline, "builtin", "HelmChartInflationGenerator"), codePlugin, "generators[0]", 2},
		{"plugin", fmt.Sprintf(inline, "example.com/v1", "Exec"), codePlugin, "generators[0]", 2},
		{"plugin in a file", "transformers:\n- function.yaml", codePlugin, "transformers[0]", 2},
		{"plugin as validator", "validators: [function.yaml]", codePlugin, "validators[0]", 1},
		{"no YAML", "resources: [\n", codeKustomize, "", 1},
		{"unknown field", "absent: 1\nresources: [a.yaml]\n", codeKustomize, "", 0},
		// The scan does not see these.
		{"URL in a builtin", "generators:\n- |\n  apiVersion: builtin\n  kind: ConfigMapGenerator\n  metadata: {name: a}\n  files: [\"" + link + "\"]\n", codeRemote, "", 0},
		{"URL by a merge key", "x: &x {path: \"" + link + "\"}\npatches:\n- <<: *x", "", "", 0},
		{"plugin in a folder", "generators: [plugins]", codePlugin, "", 0},
		{"cycle", "resources: [../top]", codeKustomize, "", 0},
	}
	for _, c := range cases {
		files := texts(map[string]string{
			"top/kustomization.yaml": c.text,
			"top/a.yaml":             "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
			"top/function.yaml": "apiVersion: example.com/v1\nkind: Function\nmetadata:\n  name: f\n  annotations:\n" +
				"    config.kubernetes.io/function: |\n      container: {image: example.org/image}\n",
			"top/plugins/kustomization.yaml": "resources: [plugin.yaml]",
			"top/plugins/plugin.yaml":        "apiVersion: example.com/v1\nkind: Exec\nmetadata: {name: a}\n",
		})
		// A second overlay finds the errors of the first.
		files["over/kustomization.yaml"] = []byte("resources: [../top]")
		for _, path := range []string{"top", "over"} {
			answer := renderKustomization(&kustomizationRequest{Path: path, Files: files})
			if len(answer.Errors) != 1 || answer.Text != "" {
				t.Errorf("%s: %s: got %+v %q", c.name, path, answer.Errors, answer.Text)
				continue
			}
			got := answer.Errors[0]
			file := "top/kustomization.yaml"
			if c.field == "" && c.line == 0 {
				file = path + "/kustomization.yaml"
			}
			if c.code != "" && (got.Code != c.code || got.Field != c.field || got.Line != c.line) || got.File != file {
				t.Errorf("%s: %s: got %+v", c.name, path, got)
			}
		}
	}
	if connections.Load() > 0 {
		t.Errorf("got %d connections", connections.Load())
	}
}

func TestOverlayPaths(t *testing.T) {
	files := texts(map[string]string{"kustomization.yaml": "namePrefix: a-\nresources: [a.yaml]\n", "a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"})
	for _, path := range []string{"", "."} {
		if answer := renderKustomization(&kustomizationRequest{Path: path, Files: files}); len(answer.Errors) > 0 || !strings.Contains(answer.Text, "a-a") {
			t.Errorf("%q: got %+v", path, answer)
		}
	}
	for _, path := range []string{"..", "/", "/etc", "../x", "absent", "https://example.org/org/repo", "a.yaml"} {
		answer := renderKustomization(&kustomizationRequest{Path: path, Files: files})
		if len(answer.Errors) != 1 || answer.Errors[0].Code != codeOutside {
			t.Errorf("%q: got %+v", path, answer)
		}
	}
	files["../x"] = nil
	if answer := renderKustomization(&kustomizationRequest{Path: ".", Files: files}); len(answer.Errors) != 1 {
		t.Errorf("got %+v", answer)
	}
}

// Files above the overlay are allowed if the request contains them.
func TestOverlayReadsFilesOfBases(t *testing.T) {
	files := texts(map[string]string{
		"a/kustomization.yaml": "configMapGenerator:\n- name: c\n  files: [../shared/x.txt]\n",
		"shared/x.txt":         "text",
	})
	answer := renderKustomization(&kustomizationRequest{Path: "a", Files: files})
	if len(answer.Errors) > 0 || !strings.Contains(answer.Text, "x.txt: text") {
		t.Errorf("got %+v", answer)
	}
}

// A schema of one overlay does not change the next.
func TestOverlaysAreIndependent(t *testing.T) {
	files := folderFiles(t, "testdata/overlays")
	before := renderKustomization(&kustomizationRequest{Path: "web/base", Files: files})
	schema := texts(map[string]string{
		"kustomization.yaml": "openapi: {path: schema.json}\nresources: [a.yaml]\n",
		"schema.json":        `{"definitions": {}}`,
		"a.yaml":             "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
	})
	renderKustomization(&kustomizationRequest{Path: ".", Files: schema})
	after := renderKustomization(&kustomizationRequest{Path: "web/base", Files: files})
	if before.Text != after.Text || before.Text == "" {
		t.Errorf("the answer changed from %q to %q", before.Text, after.Text)
	}
}
