package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"
)

func TestChartsEqualHelm(t *testing.T) {
	cases := []struct {
		chart  string
		values string
	}{
		{"subcharts", `{}`},
		{"subcharts", `{"tags": {"back-end": false}, "metrics": {"enabled": true}}`},
		{"subcharts", `{"cache": {"enabled": false}, "queue": {"size": 9, "name": null}, "settings": {"level": "warn"}}`},
		{"subcharts", `{"global": {"cache": false, "region": "us"}, "settings": {"level": null}}`},
		{"functions", `{}`},
		{"functions", `{"name": "second", "big": 9007199254740993, "port": 80.5, "map": {"y": {"x": "text"}, "q": [1, {"r": null}]}}`},
		{"hooks", `{}`},
		{"order", `{}`},
		{"order", `{"never": true}`},
	}
	for _, c := range cases {
		files := folderFiles(t, filepath.Join("testdata", "charts", c.chart))
		for _, packed := range []bool{false, true} {
			name := fmt.Sprintf("%s %s packed=%v", c.chart, c.values, packed)
			if packed {
				files = packSubcharts(t, files)
			}
			checkEqualsHelm(t, name, files, c.values)
		}
	}
}

// packSubcharts replaces the folders in charts/ by packages.
func packSubcharts(t *testing.T, files map[string][]byte) map[string][]byte {
	t.Helper()
	result, subcharts := map[string][]byte{}, map[string]map[string][]byte{}
	for name, data := range files {
		rest, ok := strings.CutPrefix(name, "charts/")
		if !ok {
			result[name] = data
			continue
		}
		subchart, file, _ := strings.Cut(rest, "/")
		if subcharts[subchart] == nil {
			subcharts[subchart] = map[string][]byte{}
		}
		subcharts[subchart][file] = data
	}
	for name, files := range subcharts {
		result["charts/"+name+"-1.tgz"] = archived(t, files)
	}
	return result
}

func checkEqualsHelm(t *testing.T, name string, files map[string][]byte, values string) {
	t.Helper()
	req := chartOf(files, values)
	answer := renderChart(req)
	if len(answer.Errors) > 0 {
		t.Fatalf("%s: %+v", name, answer.Errors)
	}
	stdout, stderr, err := helmTemplate(t, req)
	if err != nil {
		t.Fatalf("%s: helm: %v: %s", name, err, stderr)
	}
	chartName := strings.Split(strings.TrimPrefix(strings.SplitN(stdout, "\n", 3)[1], "# Source: "), "/")[0]
	block := func(source, text string) string {
		return fmt.Sprintf("---\n# Source: %s/%s\n%s\n", chartName, source, text)
	}
	var manifests strings.Builder
	var hooks []string
	for _, file := range answer.CRDs {
		manifests.WriteString(block(file.Source, file.Text))
	}
	for _, document := range answer.Documents {
		if document.Hook == nil {
			manifests.WriteString(block(document.Source, document.Text))
		} else {
			hooks = append(hooks, block(document.Source, document.Text))
		}
	}
	expected := strings.TrimSpace(manifests.String()) + "\n"
	rest, ok := strings.CutPrefix(stdout, expected)
	if !ok {
		t.Fatalf("%s:\n--- expected, of helm:\n%s\n--- got:\n%s", name, stdout, expected)
	}
	// helm prints hooks by kind, this program in the order of execution.
	printed := strings.SplitAfter(rest, "\n---\n")
	for i := range printed {
		printed[i] = strings.TrimSuffix(printed[i], "---\n")
		if i > 0 {
			printed[i] = "---\n" + printed[i]
		}
	}
	if rest == "" {
		printed = nil
	}
	sort.Strings(printed)
	sort.Strings(hooks)
	if !reflect.DeepEqual(printed, hooks) {
		t.Fatalf("%s: hooks:\n--- expected, of helm:\n%q\n--- got:\n%q", name, printed, hooks)
	}
}

func helmTemplate(t *testing.T, req *chartRequest) (string, string, error) {
	t.Helper()
	folder := writeFiles(t, req.Files)
	values := filepath.Join(t.TempDir(), "values.json")
	if err := os.WriteFile(values, req.Values, 0o644); err != nil {
		t.Fatal(err)
	}
	arguments := []string{
		"template", req.Name, folder, "--namespace", req.Namespace, "--kube-version", req.Kubernetes,
		"--values", values, "--include-crds", "--skip-schema-validation",
	}
	for _, version := range req.APIVersions {
		arguments = append(arguments, "--api-versions", version)
	}
	return referee(t, folder, "helm", arguments...)
}

func TestErrorsEqualHelm(t *testing.T) {
	cases := []struct {
		name     string
		files    map[string]string
		code     string
		template string
		line     int
	}{
		{"required", map[string]string{"templates/a.yaml": "a: b\nb: {{ required \"give b\" .Values.b }}\n"},
			codeTemplate, "templates/a.yaml", 2},
		{"required on the first line", map[string]string{"templates/a.yaml": "b: {{ required \"give b\" .Values.b }}\n"},
			codeTemplate, "templates/a.yaml", 1},
		{"fail in a helper", map[string]string{
			"templates/_a.tpl":  "{{ define \"a\" }}\n\n{{ fail \"stop\" }}{{ end }}",
			"templates/a.yaml":  "a: b\nb: {{ include \"a\" . }}\n",
			"templates/b.yaml":  "{{ randAlphaNum 3 }}",
			"templates/_b.tpl":  "{{ define \"b\" }}{{ end }}",
			"templates/_b2.tpl": "{{ define \"b2\" }}{{ end }}",
		}, codeTemplate, "templates/a.yaml", 2},
		{"recorded functions in a line before an error", map[string]string{
			"templates/a.yaml": "a: {{ now | date \"2006\" }} {{ lookup \"v1\" \"Secret\" \"a\" \"b\" }} {{ .Values.a.b.c }}\n",
		}, codeTemplate, "templates/a.yaml", 1},
		{"wrong argument of a recorded function", map[string]string{
			"templates/a.yaml": "a: b\nc: {{ randAlphaNum \"x\" }}\n",
		}, codeTemplate, "templates/a.yaml", 2},
		{"wrong number of arguments", map[string]string{
			"templates/a.yaml": "a: {{ lookup \"v1\" \"Secret\" }}\n",
		}, codeTemplate, "templates/a.yaml", 1},
		{"empty range of random numbers", map[string]string{
			"templates/a.yaml": "a: {{ randInt 3 3 }}\n",
		}, codeTemplate, "templates/a.yaml", 1},
		{"unknown function", map[string]string{"templates/a.yaml": "a: b\n\nb: {{ absent 1 }}\n"},
			codeTemplate, "templates/a.yaml", 3},
		{"environment", map[string]string{"templates/a.yaml": "b: {{ env \"HOME\" }}\n"},
			codeTemplate, "templates/a.yaml", 1},
		{"unclosed action", map[string]string{"templates/a.yaml": "a: b\n{{ if true }}\n"},
			codeTemplate, "templates/a.yaml", 3},
		{"unknown template", map[string]string{"templates/a.yaml": "a: {{ include \"absent\" . }}\n"},
			codeTemplate, "templates/a.yaml", 1},
		{"endless include", map[string]string{
			"templates/a.yaml": "{{ define \"a\" }}{{ include \"a\" . }}{{ end }}a: {{ include \"a\" . }}\n",
		}, codeTemplate, "templates/a.yaml", 1},
		{"bad tpl", map[string]string{"templates/a.yaml": "a: b\nb: {{ tpl \"{{ now | absent }}\" . }}\n"},
			codeTemplate, "templates/a.yaml", 2},
		{"output is no YAML", map[string]string{"templates/a.yaml": "a: b\n c: d\n"},
			codeTemplate, "templates/a.yaml", 0},
		{"notes fail", map[string]string{"templates/NOTES.txt": "{{ fail \"notes\" }}"},
			codeTemplate, "templates/NOTES.txt", 1},
		{"bad Chart.yaml", map[string]string{"Chart.yaml": "apiVersion: v2\nname: a\n"}, codeFile, "", 0},
		{"bad values.yaml", map[string]string{"values.yaml": "a: b\n c: d\n"}, codeFile, "", 0},
		{"later version of charts", map[string]string{"Chart.yaml": "apiVersion: v3\nname: a\nversion: 1.0.0\n"},
			codeFile, "Chart.yaml", 0},
		{"library", map[string]string{"Chart.yaml": "apiVersion: v2\nname: a\nversion: 1.0.0\ntype: library\n"},
			codeFile, "Chart.yaml", 0},
		{"version of Kubernetes", map[string]string{
			"Chart.yaml": "apiVersion: v2\nname: a\nversion: 1.0.0\nkubeVersion: '>= 1.99'\n",
		}, codeFile, "Chart.yaml", 0},
		{"missing dependency", map[string]string{
			"Chart.yaml": "apiVersion: v2\nname: a\nversion: 1.0.0\ndependencies:\n- name: other\n  version: 1.0.0\n",
		}, codeDependency, "Chart.yaml", 5},
	}
	for _, c := range cases {
		req := chartOf(smallChart(c.files), `{}`)
		answer := renderChart(req)
		if len(answer.Errors) != 1 {
			t.Errorf("%s: expected one error, got %+v", c.name, answer.Errors)
			continue
		}
		got := answer.Errors[0]
		if got.Code != c.code || got.Template != c.template || got.Line != c.line {
			t.Errorf("%s: got %+v", c.name, got)
		}
		if len(answer.Documents) > 0 {
			t.Errorf("%s: documents besides an error", c.name)
		}
		if refereesFolder == "" {
			continue
		}
		_, stderr, err := helmTemplate(t, req)
		start, _, _ := strings.Cut(got.Message, "…")
		if err == nil || !strings.Contains(stderr, start) {
			t.Errorf("%s:\n--- helm: %v\n%s\n--- got:\n%s", c.name, err, stderr, got.Message)
		}
	}
}

func TestRandomChart(t *testing.T) {
	req := chartOf(folderFiles(t, "testdata/charts/random"), `{}`)
	answer := renderChart(req)
	if len(answer.Errors) > 0 {
		t.Fatalf("%+v", answer.Errors)
	}
	fields := map[string]bool{}
	for _, difference := range answer.Irreproducible {
		if difference.Document != "templates/secret.yaml" || difference.Index != 1 {
			t.Errorf("got a difference of %s %d", difference.Document, difference.Index)
		}
		fields[difference.Field] = true
	}
	text := string(req.Files["templates/secret.yaml"])
	for _, line := range strings.Split(strings.Split(text, "\n---\n")[1], "\n") {
		key, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		if strings.HasPrefix(line, "  ") && !strings.HasPrefix(key, "{{") && key != "annotations" && key != "name" &&
			!fields[".stringData."+key] && !fields[fmt.Sprintf(".metadata.annotations[%q]", key)] {
			t.Errorf("%s is not reported", key)
		}
	}
	var functions []string
	for _, called := range answer.Calls {
		functions = append(functions, called.Function)
	}
	for name := range standIns {
		if !slices.Contains(functions, name) {
			t.Errorf("no call of %s is reported", name)
		}
	}
	for _, expected := range []call{
		{"randAlphaNum", "templates/_helpers.tpl", 2},
		{"randNumeric", "templates/secret.yaml", 0},
		{"uuidv4", "templates/secret.yaml", 24},
	} {
		if !slices.Contains(answer.Calls, expected) {
			t.Errorf("%+v is missing in %+v", expected, answer.Calls)
		}
	}
	causes := map[string][]call{
		".stringData.uuid":   {{"uuidv4", "templates/secret.yaml", 24}},
		".stringData.inline": {{"randNumeric", "templates/secret.yaml", 0}},
		".stringData.ascii":  {{"randAscii", "templates/secret.yaml", 20}},
		".stringData.ca":     {{"genCA", "templates/secret.yaml", 38}},
		`.metadata.annotations["example.com/password"]`: {{"randAlphaNum", "templates/_helpers.tpl", 2}},
	}
	for _, difference := range answer.Irreproducible {
		if expected, ok := causes[difference.Field]; ok && !slices.Equal(difference.Calls, expected) {
			t.Errorf("%s: got causes %+v", difference.Field, difference.Calls)
		}
		// Times are not recognized.
		if difference.Field == ".stringData.now" && len(difference.Calls) < 20 {
			t.Errorf("%s: got causes %+v", difference.Field, difference.Calls)
		}
	}
	lookups := []lookup{
		{"templates/secret.yaml", 56, "v1", "Secret", "space", "random"},
		{"templates/secret.yaml", 59, "apps/v1", "Deployment", "", ""},
	}
	if !reflect.DeepEqual(answer.Lookups, lookups) {
		t.Errorf("got lookups %+v", answer.Lookups)
	}
	uses := []releaseUse{
		{"IsUpgrade", "templates/secret.yaml", 55}, {"Revision", "templates/secret.yaml", 55},
		{"IsInstall", "templates/secret.yaml", 55},
	}
	if !reflect.DeepEqual(answer.UsesRelease, uses) {
		t.Errorf("got uses of the release %+v", answer.UsesRelease)
	}
}

func TestAnswersAreReproducible(t *testing.T) {
	var answers []string
	for range 3 {
		req := &request{Format: format}
		for _, name := range []string{"subcharts", "functions", "hooks", "order", "random"} {
			req.Charts = append(req.Charts, *chartOf(folderFiles(t, "testdata/charts/"+name), `{}`))
		}
		files := folderFiles(t, "testdata/overlays")
		req.Kustomizations = []kustomizationRequest{{"web/overlays/production", files}, {"legacy", files}}
		answers = append(answers, answerText(t, req))
	}
	for _, answer := range answers {
		if answer != answers[0] {
			t.Fatal("two answers to one request differ")
		}
	}
}

func TestOrderOfMapsIsFixed(t *testing.T) {
	files := smallChart(map[string]string{
		"templates/a.yaml": "a: {{ keys .Values.map | join \"\" }}\nb: {{ values .Values.map | join \"\" }}\n",
	})
	answer := renderChart(chartOf(files, `{"map": {"d": 4, "b": 2, "a": 1, "c": 3, "e": 5}}`))
	if got := answer.Documents[0].Text; got != "a: abcde\nb: 12345\n" {
		t.Errorf("got %q", got)
	}
}

func TestSameNamesOfFilesAreReported(t *testing.T) {
	files := smallChart(map[string]string{
		"templates/a.yaml": "data:\n{{ (.Files.Glob \"files/**\").AsConfig | indent 2 }}\n",
		"files/a/x":        "1", "files/b/x": "2",
	})
	answer := renderChart(chartOf(files, `{}`))
	if len(answer.Irreproducible) != 1 || answer.Irreproducible[0].Field != ".data.x" ||
		!slices.Equal(answer.Irreproducible[0].Calls, []call{{"AsConfig", "templates/a.yaml", 2}}) {
		t.Errorf("got %+v", answer.Irreproducible)
	}
	if text := answer.Documents[0].Text; text != "data:\n  x: \"2\"\n" {
		t.Errorf("got %q", text)
	}
	files["templates/a.yaml"] = []byte("data:\n{{ (.Files.Glob \"files/a/*\").AsConfig | indent 2 }}\n")
	answer = renderChart(chartOf(files, `{}`))
	if len(answer.Irreproducible) != 0 {
		t.Errorf("got %+v", answer.Irreproducible)
	}
	// The other functions of .Files are Helm's.
	files = folderFiles(t, "testdata/charts/functions")
	files["files/deep/a.txt"] = []byte("twin")
	files["templates/c-files.yaml"] = bytes.ReplaceAll(files["templates/c-files.yaml"], []byte("files/**"), []byte("files/deep/*"))
	if refereesFolder != "" {
		checkEqualsHelm(t, "twins", files, `{}`)
	}
}

func TestNotesDoNotCount(t *testing.T) {
	files := smallChart(map[string]string{
		"templates/NOTES.txt": "{{ lookup \"v1\" \"Secret\" \"a\" \"b\" }} {{ now }} {{ .Release.Revision }} {{ include \"a\" . }}",
		"templates/_a.tpl":    "{{ define \"a\" }}{{ uuidv4 }}{{ end }}",
		"templates/a.yaml":    "a: b\n",
	})
	answer := renderChart(chartOf(files, `{}`))
	if len(answer.Documents) != 1 || len(answer.Calls)+len(answer.Lookups)+len(answer.UsesRelease)+len(answer.Errors) > 0 {
		t.Errorf("got %+v", answer)
	}
}

func TestDifferences(t *testing.T) {
	cases := []struct {
		template string
		fields   []string
	}{
		{`a: {{ randInt 0 2 }}`, []string{".a"}},
		{`a: {{ randInt 1 2 }}`, nil},
		{`a: {{ randAlpha 1 | lower }}`, []string{".a"}},
		{`a: {b: [1, {c: {{ uuidv4 }}}]}`, []string{".a.b[1].c"}},
		{"{{ uuidv4 | quote }}: 1", nil}, // checked below: two keys
		{`a: {{ now | date "15" | quote }} # {{ now }}`, []string{".a"}},
		{`# {{ now }}` + "\na: 1", nil},
		{"{{ range until (randInt 1 3) }}\n---\na: {{ . }}\n{{ end }}", []string{""}},
		{`a: {{ list (randInt 0 9) (randInt 0 9) | toJson }}`, []string{".a[0]", ".a[1]"}},
		{`a: {{ if eq (randInt 0 2) 0 }}{b: 1}{{ else }}[1]{{ end }}`, []string{".a"}},
		{`a: {{ randAlphaNum 0 | quote }}{{ randAlphaNum -1 }}`, nil},
		{`a: {{ shuffle "aaa" }}`, nil},
		{`a: {{ dateInZone "2006" 0 "UTC" }}`, nil},
	}
	for _, c := range cases {
		answer := renderChart(chartOf(smallChart(map[string]string{"templates/a.yaml": c.template}), `{}`))
		if len(answer.Errors) > 0 {
			t.Errorf("%s: %+v", c.template, answer.Errors)
			continue
		}
		var fields []string
		for _, difference := range answer.Irreproducible {
			fields = append(fields, difference.Field)
		}
		if strings.Contains(c.template, "}}: 1") {
			if len(fields) != 2 {
				t.Errorf("%s: got %q", c.template, fields)
			}
		} else if !reflect.DeepEqual(fields, c.fields) {
			t.Errorf("%s: got %q", c.template, fields)
		}
	}
}

func TestBadRequestsOfCharts(t *testing.T) {
	link := &tar.Header{Name: "p/Chart.yaml", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}
	climbing := &tar.Header{Name: "p/../../x", Mode: 0o644, Size: 1}
	zeros := &tar.Header{Name: "p/zeros", Mode: 0o644, Size: 8 << 20}
	var many []*tar.Header
	for i := range maxEntries + 1 {
		many = append(many, &tar.Header{Name: fmt.Sprintf("p/%d", i), Mode: 0o644})
	}
	nested := []byte("x")
	for range maxNesting + 2 {
		nested = archived(t, map[string][]byte{"charts/a.tgz": nested})
	}
	one := map[*tar.Header][]byte{climbing: []byte("x"), zeros: make([]byte, 8<<20)}
	cases := []struct {
		name    string
		files   map[string][]byte
		message string
	}{
		{"no Chart.yaml", texts(map[string]string{"a": "b"}), "Chart.yaml file is missing"},
		{"no files", nil, "Chart.yaml file is missing"},
		{"climbing", texts(map[string]string{"../a": "b"}), "not a clean relative path"},
		{"absolute", texts(map[string]string{"/a": "b"}), "not a clean relative path"},
		{"double slash", texts(map[string]string{"a//b": "b"}), "not a clean relative path"},
		{"backslash", texts(map[string]string{`a\b`: "b"}), "not a clean relative path"},
		{"bad .helmignore", smallChart(map[string]string{".helmignore": "a/**/b"}), "double-star"},
		{"package is no package", smallChart(map[string]string{"charts/a.tgz": "text"}), "read the package"},
		{"link in a package", withPackage(archivedEntries(t, []*tar.Header{link}, one)), "is a link or a device"},
		{"climbing in a package", withPackage(archivedEntries(t, []*tar.Header{climbing}, one)), "leaves the package"},
		{"bomb", withPackage(archivedEntries(t, []*tar.Header{zeros}, one)), "compressed more than 100:1"},
		{"entries", withPackage(archivedEntries(t, many, nil)), "more than 10000 entries"},
		{"nested", withPackage(nested), "nested more than 8 deep"},
		{"twins", func() map[string][]byte {
			files := smallChart(nil)
			files["charts/a/Chart.yaml"] = []byte("apiVersion: v2\nname: sub\nversion: 1.0.0\n")
			files["charts/b/Chart.yaml"] = files["charts/a/Chart.yaml"]
			return files
		}(), "two subcharts have the name sub"},
	}
	for _, c := range cases {
		answer := renderChart(chartOf(c.files, `{}`))
		if len(answer.Errors) != 1 || answer.Errors[0].Code != codeFile || !strings.Contains(answer.Errors[0].Message, c.message) {
			t.Errorf("%s: got %+v", c.name, answer.Errors)
		}
	}
	bad := chartOf(smallChart(nil), `[1]`)
	if answer := renderChart(bad); len(answer.Errors) != 1 || answer.Errors[0].Code != codeFile {
		t.Errorf("values that are no map: got %+v", answer.Errors)
	}
	bad = chartOf(smallChart(nil), `null`)
	if answer := renderChart(bad); len(answer.Errors) != 0 {
		t.Errorf("null values: got %+v", answer.Errors)
	}
}

func withPackage(data []byte) map[string][]byte {
	files := smallChart(nil)
	files["charts/a.tgz"] = data
	return files
}

func TestSchemasAreNotRead(t *testing.T) {
	address, connections := listen(t)
	files := smallChart(map[string]string{
		"values.schema.json": fmt.Sprintf(`{"$ref": "http://%s/schema.json", "type": "string"}`, address),
		"templates/a.yaml":   "a: b\n",
	})
	answer := renderChart(chartOf(files, `{}`))
	if len(answer.Errors) > 0 || connections.Load() > 0 {
		t.Errorf("got %+v and %d connections", answer.Errors, connections.Load())
	}
}

func TestPanicsAreErrors(t *testing.T) {
	files := smallChart(map[string]string{"templates/a.yaml": `a: {{ decryptAES "k" "AAAA" }}`})
	good := smallChart(map[string]string{"templates/a.yaml": "a: b\n"})
	req := &request{Charts: []chartRequest{*chartOf(files, `{}`), *chartOf(good, `{}`)}}
	text := answerText(t, req)
	if !strings.Contains(text, codeTemplate) || !strings.Contains(text, `a: b`) {
		t.Errorf("got %s", text)
	}
}

func TestMessagesHaveNoMarks(t *testing.T) {
	files := smallChart(map[string]string{"templates/a.yaml": "{{ randAlphaNum .Values.a.b }}"})
	answer := renderChart(chartOf(files, `{}`))
	text := fmt.Sprintf("%+v", answer)
	if strings.Contains(text, siteMark) || strings.Contains(text, "enter_") {
		t.Errorf("got %s", text)
	}
}

// A template cannot pretend to be another one, such as NOTES.txt.
func TestTemplatesCannotHideCalls(t *testing.T) {
	files := smallChart(map[string]string{
		"templates/NOTES.txt": "notes", "templates/a.yaml": "a: {{ pleach_enter 0 . }}{{ uuidv4 }}",
	})
	if answer := renderChart(chartOf(files, `{}`)); len(answer.Errors) != 1 {
		t.Errorf("got %+v", answer)
	}
	// A mark that another call has only moves the place.
	files["templates/a.yaml"] = []byte("a: {{ lookup__site0 \"v1\" \"A\" \"\" \"\" }}{{ lookup \"v1\" \"B\" \"\" \"\" }}")
	if answer := renderChart(chartOf(files, `{}`)); len(answer.Lookups) != 2 {
		t.Errorf("got %+v", answer)
	}
}

func TestCapabilities(t *testing.T) {
	module, err := os.ReadFile("go.mod")
	if err != nil || !strings.Contains(string(module), "helm.sh/helm/v4 "+helmVersion+"\n") {
		t.Errorf("go.mod has another version of Helm than %s: %v", helmVersion, err)
	}
	files := smallChart(map[string]string{"templates/a.yaml": "a: {{ .Capabilities.HelmVersion.Version }}\n"})
	if answer := renderChart(chartOf(files, `{}`)); answer.Documents[0].Text != "a: "+helmVersion+"\n" {
		t.Errorf("got %+v", answer)
	}
}

func TestPositionsOfDocuments(t *testing.T) {
	files := smallChart(map[string]string{
		"templates/a.yaml": "kind: Service\n---\nkind: Secret\n---\nkind: Service\n---\nkind: Secret\n---\nkind: ConfigMap\n",
	})
	answer := renderChart(chartOf(files, `{}`))
	var got []int
	for _, document := range answer.Documents {
		got = append(got, document.Index)
	}
	if !slices.Equal(got, []int{1, 3, 4, 0, 2}) {
		t.Errorf("got %v", got)
	}
}

func TestByteOrderMarks(t *testing.T) {
	files := smallChart(map[string]string{"templates/a.yaml": "\ufeffa: b\n"})
	answer := renderChart(chartOf(files, `{}`))
	if bytes.Contains([]byte(answer.Documents[0].Text), utf8BOM) {
		t.Errorf("got %q", answer.Documents[0].Text)
	}
}
