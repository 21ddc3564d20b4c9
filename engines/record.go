package main

import (
	"cmp"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"text/template"

	"github.com/Masterminds/sprig/v3"
)

const lookupName = "lookup"

// Results that are retained of a call: their number and shortest length.
const (
	maxResults = 100
	minResult  = 4
)

// maxLookups limits the different lookups that are recorded of one chart.
const maxLookups = 10_000

var sprigFunctions = sprig.TxtFuncMap()

// isRecorded reports whether calls of a function are recorded.
func isRecorded(function string) bool {
	_, ok := standIns[function]
	return ok || function == lookupName
}

// record collects calls while templates are executed.
type record struct {
	sites *sites
	pass  int
	// current is the template that is executed, as an index.
	current  int
	seen     map[call]bool
	byFile   map[string]map[call]bool
	lookedUp map[lookup]bool
	// results are texts that calls returned.
	results map[call][]string
	// counts makes two calls with equal arguments differ.
	counts map[string]int
}

func newRecord(s *sites, pass int) *record {
	return &record{
		sites: s, pass: pass, current: -1,
		seen: map[call]bool{}, byFile: map[string]map[call]bool{}, lookedUp: map[lookup]bool{}, results: map[call][]string{},
		counts: map[string]int{},
	}
}

// functions returns those that replace Helm's.
func (r *record) functions() template.FuncMap {
	functions := template.FuncMap{
		r.sites.enter: func(index int, data map[string]any) string {
			r.current = index
			if r.sites.hasTwins {
				replaceFiles(data, r.pass)
			}
			return ""
		},
		"keys":           sortedKeys,
		"values":         sortedValues,
		"derivePassword": derivePassword,
		lookupName:       r.lookup(nil),
	}
	for name := range standIns {
		functions[name] = r.standIn(name, nil)
	}
	for i := range r.sites.all {
		place := &r.sites.all[i]
		name := place.function + siteMark + strconv.Itoa(i)
		if place.function == lookupName {
			functions[name] = r.lookup(place)
		} else {
			functions[name] = r.standIn(place.function, place)
		}
	}
	return functions
}

// template returns the name of the executed template, if no place is known.
func (r *record) place(function string, place *site) site {
	if place != nil {
		return *place
	}
	result := site{function: function}
	if r.current >= 0 && r.current < len(r.sites.templates) {
		result.template = r.sites.templates[r.current]
	}
	return result
}

func (r *record) inNotes() bool {
	return r.current >= 0 && r.current < len(r.sites.templates) && isNotes(r.sites.templates[r.current])
}

func (r *record) lookup(place *site) any {
	return func(apiVersion, kind, namespace, name string) (map[string]any, error) {
		if !r.inNotes() && len(r.lookedUp) < maxLookups {
			at := r.place(lookupName, place)
			r.lookedUp[lookup{
				Template: at.template, Line: at.line,
				APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name,
			}] = true
		}
		return map[string]any{}, nil
	}
}

// standIn wraps a stand-in into a function of the type that Helm's has, so that arguments are
// checked and converted in the same way.
func (r *record) standIn(name string, place *site) any {
	original := reflect.ValueOf(sprigFunctions[name])
	wrapped := standIns[name]
	return reflect.MakeFunc(original.Type(), func(arguments []reflect.Value) []reflect.Value {
		context := &standInCall{record: r, name: name, original: original, arguments: arguments}
		results := wrapped(context)
		if !context.isStable {
			r.add(name, place, results[0])
		}
		return results
	}).Interface()
}

func (r *record) add(function string, place *site, result reflect.Value) {
	if r.inNotes() {
		return
	}
	at := r.place(function, place)
	called := call{Function: function, Template: at.template, Line: at.line}
	r.seen[called] = true
	r.addResult(called, result)
	if r.current < 0 || r.current >= len(r.sites.templates) {
		return
	}
	file := r.sites.templates[r.current]
	if r.byFile[file] == nil {
		r.byFile[file] = map[call]bool{}
	}
	r.byFile[file][called] = true
}

// addResult retains texts that are long enough to be recognized.
func (r *record) addResult(called call, result reflect.Value) {
	if result.Kind() == reflect.Struct && result.NumField() == 2 { // a certificate
		for _, name := range []string{"Cert", "Key"} {
			if field := result.FieldByName(name); field.IsValid() {
				r.addResult(called, field)
			}
		}
		return
	}
	if texts := r.results[called]; result.Kind() == reflect.String && result.Len() >= minResult && len(texts) < maxResults {
		r.results[called] = append(texts, result.String())
	}
}

func (r *record) calls() []call {
	return sortedCalls(r.seen)
}

// callsOf returns the calls while a template was executed, in helpers too.
func (r *record) callsOf(template string) []call {
	return sortedCalls(r.byFile[template])
}

func sortedCalls(set map[call]bool) []call {
	calls := make([]call, 0, len(set))
	calls = slices.AppendSeq(calls, maps.Keys(set))
	slices.SortFunc(calls, func(a, b call) int {
		return cmp.Or(cmp.Compare(a.Template, b.Template), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Function, b.Function))
	})
	return calls
}

func (r *record) lookups() []lookup {
	lookups := make([]lookup, 0, len(r.lookedUp))
	lookups = slices.AppendSeq(lookups, maps.Keys(r.lookedUp))
	slices.SortFunc(lookups, func(a, b lookup) int {
		return cmp.Or(
			cmp.Compare(a.Template, b.Template), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return lookups
}

// sortedKeys replaces Sprig's keys, whose order is random.
func sortedKeys(dicts ...map[string]any) []string {
	result := []string{}
	for _, dict := range dicts {
		result = append(result, slices.Sorted(maps.Keys(dict))...)
	}
	return result
}

// sortedValues replaces Sprig's values, whose order is random.
func sortedValues(dict map[string]any) []any {
	result := []any{}
	for _, key := range slices.Sorted(maps.Keys(dict)) {
		result = append(result, dict[key])
	}
	return result
}

type derivedFrom struct {
	counter                    uint32
	kind, password, user, site string
}

// derived contains the results of derivePassword. Both passes of a chart need the same ones.
var derived = map[derivedFrom]string{}

// derivePassword takes 32 MiB and a tenth of a second at each call. It does not depend on chance.
func derivePassword(counter uint32, kind, password, user, site string) string {
	from := derivedFrom{counter, kind, password, user, site}
	if result, ok := derived[from]; ok {
		return result
	}
	derive := sprigFunctions["derivePassword"].(func(uint32, string, string, string, string) string)
	// Free the memory of the call before, which the collector sees too late for the limit.
	runtime.GC()
	result := derive(counter, kind, password, user, site)
	derived[from] = result
	return result
}
