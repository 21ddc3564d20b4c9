package main

import "encoding/json"

// format is the version of requests and answers.
const format = 1

// request names charts and overlays to render, with all their files.
type request struct {
	Format         int                    `json:"format"`
	Charts         []chartRequest         `json:"charts"`
	Kustomizations []kustomizationRequest `json:"kustomizations"`
}

type chartRequest struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Files       map[string][]byte `json:"files"`
	Values      json.RawMessage   `json:"values"`
	Kubernetes  string            `json:"kubernetes"`
	APIVersions []string          `json:"apiVersions"`
	// Lookups is whether the caller accepts calls of lookup. The answer names them either way.
	Lookups bool `json:"lookups"`
}

type kustomizationRequest struct {
	Path  string            `json:"path"`
	Files map[string][]byte `json:"files"`
}

type chartAnswer struct {
	Documents []document `json:"documents"`
	CRDs      []crd      `json:"crds"`
	chartNotes
}

// chartNotes is the part of an answer that is small.
type chartNotes struct {
	Lookups        []lookup         `json:"lookups"`
	Calls          []call           `json:"calls"`
	Irreproducible []irreproducible `json:"irreproducible"`
	UsesRelease    []releaseUse     `json:"usesRelease"`
	Errors         []chartError     `json:"errors"`
}

// document is one YAML document of a template. Index counts the documents of its source from 0.
type document struct {
	Source string `json:"source"`
	Index  int    `json:"index"`
	Hook   *hook  `json:"hook"`
	Text   string `json:"text"`
}

type hook struct {
	Events         []string `json:"events"`
	Weight         int      `json:"weight"`
	DeletePolicies []string `json:"deletePolicies"`
}

// crd is a file of a folder crds/. Its text may contain several documents.
type crd struct {
	Source string `json:"source"`
	Text   string `json:"text"`
}

type lookup struct {
	Template   string `json:"template"`
	Line       int    `json:"line"`
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}

// call is a call of a function whose result differs from run to run in Helm. Line is 0 if the
// call stands in a text that `tpl` renders.
type call struct {
	Function string `json:"function"`
	Template string `json:"template"`
	Line     int    `json:"line"`
}

// irreproducible is a field that differs between two renderings. Field is empty if the
// documents cannot be compared.
type irreproducible struct {
	Document string `json:"document"`
	Index    int    `json:"index"`
	Field    string `json:"field"`
	Calls    []call `json:"calls"`
}

type releaseUse struct {
	Field    string `json:"field"`
	Template string `json:"template"`
	Line     int    `json:"line"`
}

// Codes of errors.
const (
	codeTemplate   = "chart-template"
	codeDependency = "chart-dependency-missing"
	codeFile       = "chart-file"

	codeKustomize = "kustomize"
	codeRemote    = "kustomize-remote"
	codePlugin    = "kustomize-plugin"
	codeOutside   = "kustomize-outside"
)

type chartError struct {
	Code     string `json:"code"`
	Message  string `json:"message"`
	Template string `json:"template"`
	Line     int    `json:"line"`
}

type kustomizationAnswer struct {
	Text   string               `json:"text"`
	Errors []kustomizationError `json:"errors"`
}

type kustomizationError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	File    string `json:"file"`
	Line    int    `json:"line"`
	Field   string `json:"field"`
}
