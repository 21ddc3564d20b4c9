package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"text/template/parse"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
)

// site is a place in a template that calls a recorded function.
type site struct {
	function string
	// template is the name without that of the chart.
	template string
	line     int
}

// insertion is a text that instrument put into a line of a template. Column is its byte in the
// original line, from 0.
type insertion struct {
	line   int
	column int
	length int
}

// sites are the recorded calls of a chart. Go's templates do not tell a function where it is
// called. Each call therefore gets a name of its own, such as `lookup__site3`, and each template
// begins with a call that announces it.
type sites struct {
	root string
	// enter is the name of the function that announces a template. It depends on all files, so that
	// no template can call it.
	enter       string
	all         []site
	templates   []string
	releaseUses []releaseUse
	// columns lists the insertions of each template by its full name.
	columns map[string][]insertion
	// hasTwins reports that .Files.AsConfig can depend on chance. flattened lists its calls then.
	hasTwins  bool
	flattened []call
}

const siteMark = "__site"

// instrument replaces the templates of a chart and its subcharts.
func instrument(root *chart.Chart, digest string) *sites {
	s := &sites{root: root.Name(), enter: "enter_" + digest, columns: map[string][]insertion{}, releaseUses: []releaseUse{}}
	s.hasTwins = hasTwins(root)
	s.addChart(root)
	sort.SliceStable(s.releaseUses, func(i, j int) bool {
		a, b := s.releaseUses[i], s.releaseUses[j]
		if a.Template != b.Template {
			return a.Template < b.Template
		}
		return a.Line < b.Line
	})
	s.releaseUses = slices.Compact(s.releaseUses)
	return s
}

func (s *sites) addChart(c *chart.Chart) {
	// Charts under an alias share their files, so that these are copied.
	templates := make([]*common.File, 0, len(c.Templates))
	for _, file := range c.Templates {
		if file == nil {
			continue
		}
		changed := *file
		changed.Data = []byte(s.addTemplate(fullPath(c, file.Name), string(file.Data)))
		templates = append(templates, &changed)
	}
	c.Templates = templates
	for _, dependency := range c.Dependencies() {
		s.addChart(dependency)
	}
}

// addTemplate returns the changed text. A template that cannot be parsed stays as it is: Helm
// then reports the error.
func (s *sites) addTemplate(name, text string) string {
	s.columns[name] = nil
	trees := map[string]*parse.Tree{}
	tree := parse.New(name)
	tree.Mode = parse.SkipFuncCheck
	if _, err := tree.Parse(text, "", "", trees); err != nil {
		return text
	}
	lines := newLines(text)
	found := &finder{text: text}
	for _, name := range slices.Sorted(maps.Keys(trees)) {
		found.walk(trees[name].Root)
	}
	// Nodes of several trees, in the order of the text.
	sort.SliceStable(found.uses, func(i, j int) bool { return found.uses[i].offset < found.uses[j].offset })
	sort.SliceStable(found.flattened, func(i, j int) bool { return found.flattened[i].offset < found.flattened[j].offset })
	if !isNotes(name) {
		for _, use := range found.uses {
			s.releaseUses = append(s.releaseUses, releaseUse{
				Field: use.field, Template: s.short(name), Line: lines.of(use.offset),
			})
		}
	}
	if s.hasTwins {
		for _, use := range found.flattened {
			s.flattened = append(s.flattened, call{
				Function: use.field, Template: s.short(name), Line: lines.of(use.offset),
			})
		}
	}
	return s.rewrite(name, text, lines, found.calls)
}

func (s *sites) rewrite(name, text string, lines *lines, calls []*parse.IdentifierNode) string {
	sort.Slice(calls, func(i, j int) bool { return calls[i].Pos < calls[j].Pos })
	var out strings.Builder
	insert := func(offset int, added string) {
		s.columns[name] = append(s.columns[name], insertion{
			line: lines.of(offset), column: offset - lines.start(offset), length: len(added),
		})
		out.WriteString(added)
	}
	insert(0, fmt.Sprintf("{{%s %d .}}", s.enter, len(s.templates)))
	s.templates = append(s.templates, s.short(name))
	written := 0
	for _, node := range calls {
		end := int(node.Pos) + len(node.Ident)
		if int(node.Pos) < written {
			continue // the same node twice, by a block in two trees
		}
		out.WriteString(text[written:end])
		insert(end, siteMark+strconv.Itoa(len(s.all)))
		s.all = append(s.all, site{
			function: node.Ident, template: s.short(name), line: lines.of(int(node.Pos)),
		})
		written = end
	}
	out.WriteString(text[written:])
	return out.String()
}

var (
	markPattern   = regexp.MustCompile(`\b([A-Za-z_0-9]+?)` + siteMark + `[0-9]+`)
	columnPattern = regexp.MustCompile(`([^\s()":]+/[^\s()":]+):(\d+):(\d+)`)
)

// restore removes the marks from a message and corrects its columns.
func (s *sites) restore(message string) string {
	message = columnPattern.ReplaceAllStringFunc(message, func(place string) string {
		match := columnPattern.FindStringSubmatch(place)
		insertions, known := s.columns[match[1]]
		if !known {
			return place
		}
		line, _ := strconv.Atoi(match[2])
		column, _ := strconv.Atoi(match[3])
		for _, inserted := range insertions {
			if inserted.line == line && inserted.column < column {
				column -= min(inserted.length, column-inserted.column)
			}
		}
		return fmt.Sprintf("%s:%d:%d", match[1], line, column)
	})
	return markPattern.ReplaceAllString(message, "$1")
}

// lines maps offsets of a text to lines.
type lines struct {
	starts []int
}

func newLines(text string) *lines {
	result := &lines{starts: []int{0}}
	for i := range len(text) {
		if text[i] == '\n' {
			result.starts = append(result.starts, i+1)
		}
	}
	return result
}

// of returns the line of an offset, from 1.
func (l *lines) of(offset int) int {
	return sort.SearchInts(l.starts, offset+1)
}

// start returns the offset of the first byte of the line.
func (l *lines) start(offset int) int {
	return l.starts[l.of(offset)-1]
}

// finder collects calls of recorded functions and uses of facts about the release.
type finder struct {
	text  string
	calls []*parse.IdentifierNode
	uses  []use
	// flattened are uses of .Files.AsConfig and .Files.AsSecrets.
	flattened []use
}

type use struct {
	field  string
	offset int
}

var releaseFields = []string{"IsInstall", "IsUpgrade", "Revision"}

func (f *finder) walk(node parse.Node) {
	switch n := node.(type) {
	case *parse.ListNode:
		if n != nil {
			for _, child := range n.Nodes {
				f.walk(child)
			}
		}
	case *parse.ActionNode:
		f.walk(n.Pipe)
	case *parse.PipeNode:
		if n != nil {
			for _, command := range n.Cmds {
				f.walk(command)
			}
		}
	case *parse.CommandNode:
		f.command(n)
	case *parse.IfNode:
		f.branch(&n.BranchNode)
	case *parse.RangeNode:
		f.branch(&n.BranchNode)
	case *parse.WithNode:
		f.branch(&n.BranchNode)
	case *parse.TemplateNode:
		f.walk(n.Pipe)
	case *parse.IdentifierNode:
		end := int(n.Pos) + len(n.Ident)
		if isRecorded(n.Ident) && end <= len(f.text) && f.text[n.Pos:end] == n.Ident {
			f.calls = append(f.calls, n)
		}
	case *parse.FieldNode:
		f.fields(n.Ident, n.Pos)
	case *parse.VariableNode:
		f.fields(n.Ident, n.Pos)
	case *parse.ChainNode:
		f.walk(n.Node)
		if strings.HasSuffix(strings.TrimRight(n.Node.String(), ")"), ".Release") {
			f.fields(append([]string{"Release"}, n.Field...), n.Pos)
		} else {
			f.fields(n.Field, n.Pos)
		}
	}
}

func (f *finder) branch(n *parse.BranchNode) {
	f.walk(n.Pipe)
	f.walk(n.List)
	f.walk(n.ElseList)
}

// command also finds `index .Release "Revision"` and `get .Release "Revision"`.
func (f *finder) command(n *parse.CommandNode) {
	for i, argument := range n.Args {
		f.walk(argument)
		text, ok := argument.(*parse.StringNode)
		if ok && i > 0 && slices.Contains(releaseFields, text.Text) &&
			strings.HasSuffix(strings.TrimRight(n.Args[i-1].String(), ")"), ".Release") {
			f.uses = append(f.uses, use{field: text.Text, offset: int(text.Pos)})
		}
	}
}

func (f *finder) fields(names []string, position parse.Pos) {
	if last := names[len(names)-1]; last == "AsConfig" || last == "AsSecrets" {
		f.flattened = append(f.flattened, use{field: last, offset: int(position)})
	}
	for i := 1; i < len(names); i++ {
		if names[i-1] == "Release" && slices.Contains(releaseFields, names[i]) {
			f.uses = append(f.uses, use{field: names[i], offset: int(position)})
		}
	}
}
