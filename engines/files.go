package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
	"helm.sh/helm/v4/pkg/ignore"
)

// Limits of all packages within a chart together.
const (
	maxEntries  = 10_000
	maxUnpacked = 256 << 20
	maxRatio    = 100
	maxNesting  = 8
)

var utf8BOM = []byte{0xEF, 0xBB, 0xBF}

// chartFiles checks names and packages and applies .helmignore, as Helm does for a folder. The
// result is sorted by name.
func chartFiles(files map[string][]byte) ([]*archive.BufferedFile, *problem) {
	rules := ignore.Empty()
	if text, ok := files[ignore.HelmIgnore]; ok {
		parsed, err := ignore.Parse(bytes.NewReader(text))
		if err != nil {
			return nil, fileProblem(ignore.HelmIgnore, err)
		}
		rules = parsed
	}
	rules.AddDefaults()
	limits := &limits{}
	var result []*archive.BufferedFile
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := checkName(name); err != nil {
			return nil, fileProblem(name, err)
		}
		if isIgnored(rules, name) {
			continue
		}
		data := bytes.TrimPrefix(files[name], utf8BOM)
		if isPackage(name) {
			if err := limits.check(data, 1); err != nil {
				return nil, fileProblem(name, err)
			}
		}
		result = append(result, &archive.BufferedFile{Name: name, Data: data})
	}
	return result, nil
}

// checkName accepts clean relative paths.
func checkName(name string) error {
	if name == "" || name == "." || path.Clean(name) != name || path.IsAbs(name) ||
		name == ".." || strings.HasPrefix(name, "../") || strings.ContainsAny(name, "\x00\\") {
		return fmt.Errorf("the path %q is not a clean relative path", name)
	}
	return nil
}

// isIgnored applies the rules to the file and to each folder above it.
func isIgnored(rules *ignore.Rules, name string) bool {
	for i, char := range name {
		if char == '/' && rules.Ignore(name[:i], entry{name: name[:i], mode: fs.ModeDir}) {
			return true
		}
	}
	return rules.Ignore(name, entry{name: name})
}

// entry is a file or folder of a request.
type entry struct {
	name string
	mode fs.FileMode
}

func (e entry) Name() string       { return path.Base(e.name) }
func (e entry) Size() int64        { return 0 }
func (e entry) Mode() fs.FileMode  { return e.mode }
func (e entry) ModTime() time.Time { return time.Time{} }
func (e entry) IsDir() bool        { return e.mode.IsDir() }
func (e entry) Sys() any           { return nil }

// isPackage reports whether Helm unpacks the file as a subchart: DIR/charts/NAME.tgz.
func isPackage(name string) bool {
	return path.Ext(name) == ".tgz" && path.Base(path.Dir(name)) == "charts"
}

// limits counts what packages contain.
type limits struct {
	entries int
	bytes   int64
}

// check reads a package and the packages in it.
func (l *limits) check(data []byte, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("packages are nested more than %d deep", maxNesting)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("read the package: %w", err)
	}
	reader := tar.NewReader(&boundedReader{in: unzipped, limits: l, left: int64(len(data)) * maxRatio})
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the package: %w", err)
		}
		if err := l.checkEntry(header); err != nil {
			return err
		}
		if header.Typeflag == tar.TypeReg && isPackage(header.Name) {
			nested, err := io.ReadAll(reader)
			if err != nil {
				return fmt.Errorf("read the package: %w", err)
			}
			if err := l.check(nested, depth+1); err != nil {
				return err
			}
		}
	}
}

func (l *limits) checkEntry(header *tar.Header) error {
	l.entries++
	if l.entries > maxEntries {
		return fmt.Errorf("the packages have more than %d entries", maxEntries)
	}
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeXHeader, tar.TypeXGlobalHeader:
	default:
		return fmt.Errorf("the package entry %q is a link or a device", header.Name)
	}
	for _, part := range strings.FieldsFunc(header.Name, func(r rune) bool { return r == '/' || r == '\\' }) {
		if part == ".." {
			return fmt.Errorf("the package entry %q leaves the package", header.Name)
		}
	}
	return nil
}

// boundedReader ends with an error beyond the ratio of one package or the size of all.
type boundedReader struct {
	in     io.Reader
	limits *limits
	left   int64
}

func (r *boundedReader) Read(data []byte) (int, error) {
	n, err := r.in.Read(data)
	r.left -= int64(n)
	r.limits.bytes += int64(n)
	// Small packages of zeros are harmless: tar pads to blocks.
	if r.left < -(1 << 20) {
		return 0, fmt.Errorf("the package is compressed more than %d:1", maxRatio)
	}
	if r.limits.bytes > maxUnpacked {
		return 0, fmt.Errorf("the packages are larger than %d bytes", maxUnpacked)
	}
	return n, err
}
