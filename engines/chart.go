package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	commonutil "helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
)

// problem is an error with a place in a chart.
type problem struct {
	code     string
	template string
	line     int
	err      error
}

func (p *problem) Error() string { return p.err.Error() }

func fileProblem(template string, err error) *problem {
	return &problem{code: codeFile, template: template, err: err}
}

// renderChart renders a chart twice, with different results of all functions that are not
// reproducible. The answer contains the first rendering and the differences of the second.
func renderChart(req *chartRequest) (answer *chartAnswer) {
	answer = &chartAnswer{
		Documents: []document{}, CRDs: []crd{},
		chartNotes: chartNotes{
			Lookups: []lookup{}, Calls: []call{}, Irreproducible: []irreproducible{},
			UsesRelease: []releaseUse{}, Errors: []chartError{},
		},
	}
	defer func() {
		if reason := recover(); reason != nil {
			answer.addProblem(&problem{code: codeTemplate, err: fmt.Errorf("panic: %v", reason)})
		}
	}()
	files, err := chartFiles(req.Files)
	if err != nil {
		answer.addProblem(err)
		return answer
	}
	first, problems := render(req, files, 1)
	if first != nil {
		answer.Lookups = first.record.lookups()
		answer.Calls = first.record.calls()
		answer.UsesRelease = first.sites.releaseUses
	}
	if len(problems) > 0 {
		answer.addProblem(problems...)
		return answer
	}
	answer.Documents = first.documents
	first.documents = nil
	second, problems := render(req, files, 2)
	if len(problems) > 0 {
		answer.Documents = []document{}
		answer.addProblem(problems...)
		return answer
	}
	answer.CRDs = first.crds
	answer.Irreproducible = compare(first, second)
	runtime.KeepAlive(first.alive)
	return answer
}

func (a *chartAnswer) addProblem(problems ...*problem) {
	for _, p := range problems {
		a.Errors = append(a.Errors, chartError{
			Code: p.code, Message: shortened(p.Error()), Template: p.template, Line: p.line,
		})
	}
}

// maxMessage limits the bytes of a message. An endless include repeats itself a thousand times.
const maxMessage = 8 << 10

// shortened removes the middle of a long message.
func shortened(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	half := maxMessage / 2
	return strings.ToValidUTF8(message[:half], "") + "…" + strings.ToValidUTF8(message[len(message)-half:], "")
}

// rendering is the result of one pass.
type rendering struct {
	root string
	// files is the output by name of the template.
	files     map[string]string
	documents []document
	crds      []crd
	sites     *sites
	record    *record
	// alive keeps objects whose address a template can print, so that the next pass has others.
	alive []any
}

// render loads the chart and renders it. The result is nil if no template was executed. Only the
// output of the first pass is split into documents.
func render(req *chartRequest, files []*archive.BufferedFile, pass int) (*rendering, []*problem) {
	root, problems := loadChart(files)
	if len(problems) > 0 {
		return nil, problems
	}
	values := map[string]any{}
	if len(req.Values) > 0 {
		if err := json.Unmarshal(req.Values, &values); err != nil {
			return nil, []*problem{fileProblem("", fmt.Errorf("read the values: %w", err))}
		}
	}
	if values == nil {
		values = map[string]any{}
	}
	if err := chartutil.ProcessDependencies(root, values); err != nil {
		return nil, []*problem{fileProblem("", fmt.Errorf("chart dependencies processing failed: %w", err))}
	}
	caps, failed := capabilities(req, root)
	if failed != nil {
		return nil, []*problem{failed}
	}
	options := common.ReleaseOptions{
		Name: req.Name, Namespace: req.Namespace, Revision: 1, IsInstall: true,
	}
	// The caller checks schemas.
	renderValues, err := commonutil.ToRenderValuesWithSchemaValidation(root, values, options, caps, true)
	if err != nil {
		return nil, []*problem{fileProblem("", err)}
	}
	result := &rendering{root: root.Name(), sites: instrument(root, digestOf(req))}
	result.record = newRecord(result.sites, pass)
	result.alive = append(metadata(root, nil), renderValues)
	renderer := engine.Engine{CustomTemplateFuncs: result.record.functions()}
	output, err := renderer.RenderWithContext(context.Background(), root, renderValues)
	if err != nil {
		return result, []*problem{result.sites.problem(err)}
	}
	maps.DeleteFunc(output, func(name, _ string) bool { return isNotes(name) })
	result.files = output
	if pass > 1 {
		return result, nil
	}
	for _, file := range root.CRDObjects() {
		result.crds = append(result.crds, crd{Source: result.sites.short(file.Filename), Text: string(file.File.Data)})
	}
	if result.crds == nil {
		result.crds = []crd{}
	}
	if failed := result.sort(); failed != nil {
		return result, []*problem{failed}
	}
	return result, nil
}

func metadata(c *chart.Chart, found []any) []any {
	found = append(found, c.Metadata)
	for _, dependency := range c.Dependencies() {
		found = metadata(dependency, found)
	}
	return found
}

// digestOf depends on all bytes of a request that templates can see.
func digestOf(req *chartRequest) string {
	hash := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(req.Files)) {
		fmt.Fprintf(hash, "%q %d\n", name, len(req.Files[name]))
		hash.Write(req.Files[name])
	}
	fmt.Fprintf(hash, "%q %q %q\n", req.Name, req.Namespace, req.Values)
	return hex.EncodeToString(hash.Sum(nil))
}

// helmVersion is what .Capabilities.HelmVersion contains. A test compares it with go.mod.
const helmVersion = "v4.3.1"

func capabilities(req *chartRequest, root *chart.Chart) (*common.Capabilities, *problem) {
	result := common.DefaultCapabilities.Copy()
	if req.Kubernetes != "" {
		version, err := common.ParseKubeVersion(req.Kubernetes)
		if err != nil {
			return nil, fileProblem("", fmt.Errorf("version of Kubernetes %q: %w", req.Kubernetes, err))
		}
		result.KubeVersion = *version
	}
	// The library knows neither its patch version nor a commit, and the version of Go could change.
	result.HelmVersion.Version = helmVersion
	result.HelmVersion.GoVersion = ""
	result.APIVersions = common.VersionSet(slices.Clone(req.APIVersions))
	if required := root.Metadata.KubeVersion; required != "" &&
		!chartutil.IsCompatibleRange(required, result.KubeVersion.String()) {
		return nil, fileProblem("Chart.yaml", fmt.Errorf(
			"chart requires kubeVersion: %s which is incompatible with Kubernetes %s",
			required, result.KubeVersion.Version))
	}
	return result, nil
}

// loadChart builds the chart and checks what Helm checks before an installation.
func loadChart(files []*archive.BufferedFile) (*chart.Chart, []*problem) {
	root, err := loader.LoadFiles(files)
	if err != nil {
		return nil, []*problem{fileProblem("", err)}
	}
	if version := root.Metadata.APIVersion; version != chart.APIVersionV1 && version != chart.APIVersionV2 {
		return nil, []*problem{fileProblem("Chart.yaml", errors.New("invalid chart apiVersion"))}
	}
	if root.Metadata.Type != "" && root.Metadata.Type != "application" {
		return nil, []*problem{fileProblem("Chart.yaml",
			fmt.Errorf("%s charts are not installable", root.Metadata.Type))}
	}
	if problems := missingDependencies(root); len(problems) > 0 {
		return nil, problems
	}
	if failed := sortDependencies(root); failed != nil {
		return nil, []*problem{failed}
	}
	return root, nil
}

func missingDependencies(root *chart.Chart) []*problem {
	var problems []*problem
	for _, dependency := range root.Metadata.Dependencies {
		present := slices.ContainsFunc(root.Dependencies(), func(c *chart.Chart) bool {
			return c.Name() == dependency.Name
		})
		if !present {
			file, line := dependencyLine(root, dependency.Name)
			problems = append(problems, &problem{
				code: codeDependency, template: file, line: line,
				err: fmt.Errorf("found in %s, but missing in charts/ directory: %s", file, dependency.Name),
			})
		}
	}
	return problems
}

// dependencyLine returns the file that lists dependencies, and the line of one if it is found.
func dependencyLine(root *chart.Chart, name string) (string, int) {
	file, inList := "Chart.yaml", false
	for _, raw := range root.Raw {
		if raw.Name == "requirements.yaml" {
			file = raw.Name
		}
	}
	pattern := regexp.MustCompile(`^[\s-]*name:\s*["']?` + regexp.QuoteMeta(name) + `["']?\s*(#.*)?$`)
	for _, raw := range root.Raw {
		if raw.Name != file {
			continue
		}
		for i, line := range strings.Split(string(raw.Data), "\n") {
			inList = inList || strings.HasPrefix(line, "dependencies:")
			if inList && pattern.MatchString(strings.TrimRight(line, "\r")) {
				return file, i + 1
			}
		}
	}
	return file, 0
}

// sortDependencies gives subcharts an order. Helm loads them in a random one.
func sortDependencies(c *chart.Chart) *problem {
	dependencies := slices.Clone(c.Dependencies())
	sort.SliceStable(dependencies, func(i, j int) bool {
		return dependencyKey(dependencies[i]) < dependencyKey(dependencies[j])
	})
	for i, dependency := range dependencies {
		if i > 0 && dependencyKey(dependencies[i-1]) == dependencyKey(dependency) {
			return fileProblem("", fmt.Errorf(
				"two subcharts have the name %s and the version %s: Helm takes one of them at random",
				dependency.Name(), dependency.Metadata.Version))
		}
		if failed := sortDependencies(dependency); failed != nil {
			return failed
		}
	}
	c.SetDependencies(dependencies...)
	return nil
}

func dependencyKey(c *chart.Chart) string {
	return c.Name() + "\x00" + c.Metadata.Version
}

// isNotes reports whether Helm shows the output of a template instead of applying it.
func isNotes(template string) bool {
	return strings.HasSuffix(template, "NOTES.txt")
}

// sort splits the output into documents, in the order of an installation. Hooks follow the
// other documents, in the order in which Helm executes them.
func (r *rendering) sort() *problem {
	hooks, manifests, err := releaseutil.SortManifests(r.files, nil, releaseutil.InstallOrder)
	if err != nil {
		return r.sites.yamlProblem(err)
	}
	r.documents = make([]document, 0, len(manifests)+len(hooks))
	indexes := newIndexes(r.files)
	for _, manifest := range manifests {
		r.documents = append(r.documents, document{
			Source: r.sites.short(manifest.Name),
			Index:  indexes.next(manifest.Name, manifest.Content),
			Text:   manifest.Content,
		})
	}
	sort.SliceStable(hooks, func(i, j int) bool {
		if hooks[i].Weight != hooks[j].Weight {
			return hooks[i].Weight < hooks[j].Weight
		}
		return hooks[i].Name < hooks[j].Name
	})
	for _, h := range hooks {
		result := &hook{Events: []string{}, Weight: h.Weight, DeletePolicies: []string{}}
		for _, event := range h.Events {
			result.Events = append(result.Events, event.String())
		}
		for _, policy := range h.DeletePolicies {
			result.DeletePolicies = append(result.DeletePolicies, policy.String())
		}
		r.documents = append(r.documents, document{
			Source: r.sites.short(h.Path), Index: indexes.next(h.Path, h.Manifest), Hook: result, Text: h.Manifest,
		})
	}
	return nil
}

// indexes finds positions of documents within the output of their template.
type indexes map[[2]string][]int

func newIndexes(files map[string]string) indexes {
	result := indexes{}
	for name, text := range files {
		for i, document := range splitDocuments(text) {
			key := [2]string{name, document}
			result[key] = append(result[key], i)
		}
	}
	return result
}

// next returns the position of a document. Equal ones are counted in order.
func (x indexes) next(name, text string) int {
	key := [2]string{name, text}
	positions := x[key]
	if len(positions) == 0 {
		return 0
	}
	x[key] = positions[1:]
	return positions[0]
}

// splitDocuments splits as Helm does. Empty documents do not count.
func splitDocuments(text string) []string {
	split := releaseutil.SplitManifests(text)
	keys := slices.Collect(maps.Keys(split))
	sort.Sort(releaseutil.BySplitManifestsOrder(keys))
	documents := make([]string, len(keys))
	for i, key := range keys {
		documents[i] = split[key]
	}
	return documents
}

var (
	placePattern = regexp.MustCompile(`([^\s()":]+/[^\s()":]+):(\d+)`)
	yamlPattern  = regexp.MustCompile(`^YAML parse error on ([^:]+):`)
)

// problem finds the place in an error of Helm, and removes traces of the instrumentation.
func (s *sites) problem(err error) *problem {
	message := s.restore(err.Error())
	result := &problem{code: codeTemplate, err: errors.New(message)}
	for _, match := range placePattern.FindAllStringSubmatch(message, -1) {
		if _, known := s.columns[match[1]]; known {
			result.template = s.short(match[1])
			result.line, _ = strconv.Atoi(match[2])
			break
		}
	}
	return result
}

func (s *sites) yamlProblem(err error) *problem {
	result := &problem{code: codeTemplate, err: err}
	if match := yamlPattern.FindStringSubmatch(err.Error()); match != nil {
		result.template = s.short(match[1])
	}
	return result
}

// short removes the name of the chart from the name of a template.
func (s *sites) short(name string) string {
	return strings.TrimPrefix(name, s.root+"/")
}

// fullPath is the name by which Helm knows a template.
func fullPath(c *chart.Chart, name string) string {
	return path.Join(c.ChartFullPath(), name)
}
