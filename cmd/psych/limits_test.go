package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/internal/template"
)

// unlisted are numbers that docs/limits.md leaves out, and why.
var unlisted = map[string]string{
	"lexical.maxGuesses":     "how the search matches, which is no limit of what it takes",
	"lexical.maxTerms":       "what it keeps of a text of the size that is listed",
	"lexical.maxTypoWord":    "how the search matches",
	"lexical.minStart":       "how the search matches",
	"lexical.minTwoTypos":    "how the search matches",
	"lexical.minTypo":        "how the search matches",
	"main.maxPages":          "how psych tools bench searches",
	"psych.maxNoteHeads":     "a part of psych.maxNoteText",
	"psych.minOffload":       "follows from psych.minPreviewChars",
	"script.maxExcerpt":      "what errors of the script model show",
	"script.maxPattern":      "what errors of the script model show",
	"strictjson.maxPath":     "what errors of a Spec show",
	"strictjson.maxProblems": "what errors of a Spec show",
}

// goSource is the constants of the packages that a program links, evaluated,
// and their functions and variables. Names are package.Name; of a folder of main, main.Name.
type goSource struct {
	values map[string][]constant.Value
	bodies map[string][]ast.Node
	scopes map[string]map[string]ast.Expr // of each folder, constants that are not evaluated yet
}

// known are constants of the standard library that ours are made of.
var known = map[string]int64{
	"time.Nanosecond": 1, "time.Microsecond": int64(time.Microsecond), "time.Millisecond": int64(time.Millisecond),
	"time.Second": int64(time.Second), "time.Minute": int64(time.Minute), "time.Hour": int64(time.Hour), "utf8.UTFMax": 4,
}

func readGo(t *testing.T) *goSource {
	t.Helper()
	s := &goSource{map[string][]constant.Value{}, map[string][]ast.Node{}, map[string]map[string]ast.Expr{}}
	names := map[string]string{} // of packages, by folder
	for _, root := range []string{"psych", "adapters", "api", "lambda", "internal/messages", "internal/yamljson", "cmd"} {
		err := filepath.WalkDir("../../"+root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return filepath.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err == nil {
				names[filepath.Dir(path)] = file.Name.Name
				s.add(filepath.Dir(path), file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for folder, consts := range s.scopes {
		for name, expr := range consts {
			if v := s.eval(folder, expr, 0); v.Kind() == constant.Int {
				key := names[folder] + "." + name
				s.values[key] = append(s.values[key], v)
			}
		}
	}
	return s
}

func (s *goSource) add(folder string, file *ast.File) {
	if s.scopes[folder] == nil {
		s.scopes[folder] = map[string]ast.Expr{}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := file.Name.Name + "." + d.Name.Name
			s.bodies[name] = append(s.bodies[name], d)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				v, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for i, n := range v.Names {
					switch {
					case d.Tok == token.CONST && i < len(v.Values):
						s.scopes[folder][n.Name] = v.Values[i]
					case d.Tok == token.VAR && i < len(v.Values):
						name := file.Name.Name + "." + n.Name
						s.bodies[name] = append(s.bodies[name], v.Values[i])
					}
				}
			}
		}
	}
}

// eval evaluates an expression of integers; what is none is unknown.
func (s *goSource) eval(folder string, e ast.Expr, depth int) constant.Value {
	unknown := constant.MakeUnknown()
	if depth > 20 {
		return unknown
	}
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.INT {
			return constant.MakeFromLiteral(e.Value, e.Kind, 0)
		}
	case *ast.ParenExpr:
		return s.eval(folder, e.X, depth+1)
	case *ast.Ident:
		if x, ok := s.scopes[folder][e.Name]; ok {
			return s.eval(folder, x, depth+1)
		}
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			if n, ok := known[x.Name+"."+e.Sel.Name]; ok {
				return constant.MakeInt64(n)
			}
		}
	case *ast.BinaryExpr:
		x, y := s.eval(folder, e.X, depth+1), s.eval(folder, e.Y, depth+1)
		if x.Kind() != constant.Int || y.Kind() != constant.Int {
			return unknown
		}
		switch e.Op {
		case token.SHL:
			n, _ := constant.Uint64Val(y)
			return constant.Shift(x, token.SHL, uint(n))
		case token.QUO:
			return constant.BinaryOp(x, token.QUO_ASSIGN, y) // of integers
		case token.ADD, token.SUB, token.MUL:
			return constant.BinaryOp(x, e.Op, y)
		}
	}
	return unknown
}

// holds reports whether what a name stands for is a number: a constant, a
// member of the last literal of a variable (package.var.Member), or one that
// stands in the body of a function.
func (s *goSource) holds(name string, n int64) (found, ok bool) {
	for _, v := range s.values[name] {
		got, _ := constant.Int64Val(v)
		found, ok = true, ok || got == n
	}
	if found {
		return found, ok
	}
	member := ""
	nodes := s.bodies[name]
	if i := strings.LastIndexByte(name, '.'); nodes == nil && i > 0 {
		nodes, member = s.bodies[name[:i]], name[i+1:]
	}
	for _, node := range nodes {
		ast.Inspect(node, func(x ast.Node) bool {
			if kv, is := x.(*ast.KeyValueExpr); is && member != "" {
				if key, is := kv.Key.(*ast.Ident); is && key.Name == member {
					got, _ := constant.Int64Val(constant.ToInt(s.eval("", kv.Value, 0)))
					found, ok = true, got == n // the last holds
				}
			}
			if e, is := x.(ast.Expr); is && member == "" {
				if v := s.eval("", e, 0); v.Kind() == constant.Int {
					got, _ := constant.Int64Val(v)
					found, ok = true, ok || got == n
				}
			}
			return true
		})
	}
	return found, ok
}

var (
	limitRow = regexp.MustCompile(`^([0-9][0-9,.]*)(?: ([A-Za-z]+))?`)
	units    = map[string]int64{
		"B": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
		"ms": int64(time.Millisecond), "s": int64(time.Second), "min": int64(time.Minute), "h": int64(time.Hour), "days": 24 * int64(time.Hour), "day": 24 * int64(time.Hour),
	}
)

// number reads the value of a row, in bytes, nanoseconds or as it is.
func number(cell string) (n int64, timed bool, err error) {
	m := limitRow.FindStringSubmatch(cell)
	if m == nil {
		return 0, false, fmt.Errorf("%q begins with no number", cell)
	}
	if _, err := fmt.Sscan(strings.ReplaceAll(m[1], ",", ""), &n); err != nil {
		return 0, false, err
	}
	unit, ok := units[m[2]]
	if !ok {
		unit = 1
	}
	return n * unit, ok && unit >= int64(time.Millisecond), nil
}

// unitOf is that of an integer which is named after its unit.
func unitOf(name string, timed bool) int64 {
	switch {
	case strings.HasSuffix(name, "InMillis"):
		return int64(time.Millisecond)
	case strings.HasSuffix(name, "Days"), strings.HasSuffix(name, "DaysAfterInitiation"):
		return 24 * int64(time.Hour)
	case strings.HasSuffix(name, "MemorySize"):
		return 1 << 20
	case timed && strings.HasSuffix(name, "Seconds"), timed && !strings.Contains(name, "."):
		return int64(time.Second)
	}
	return 1
}

// Each number of docs/limits.md is the one of the code or the template that its
// row names, and each limit of the code has a row.
func TestLimitsAsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	source := readGo(t)
	tmpl, err := template.Read("../../template.yaml")
	if err != nil {
		t.Fatal(err)
	}
	stack, err := tmpl.Resolve(map[string]string{"Issuer": "https://issuer.example", "Audience": "psych", "Model": "openai:some", "CorsOrigins": "https://a.example"})
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	rows := 0
	var head []string
	for line := range strings.Lines(string(doc)) {
		if !strings.HasPrefix(line, "|") {
			head = nil
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		value, where := slices.Index(head, "value"), slices.Index(head, "where")
		switch {
		case head == nil:
			head = cells
			continue
		case strings.HasPrefix(cells[0], "---"):
			continue
		case len(cells) != len(head) || value < 0 || where < 0:
			t.Fatalf("the row %q has not the columns %q, with value and where", line, head)
		}
		rows++
		if cells[where] == "" || slices.Contains(cells, "") {
			t.Errorf("a cell is empty in %s", line)
		}
		if cells[value] == "none" {
			continue
		}
		n, timed, err := number(cells[value])
		if err != nil {
			t.Errorf("%s: %v", cells[0], err)
			continue
		}
		for name := range strings.SplitSeq(cells[where], ", ") {
			name = strings.Trim(name, "`")
			listed[name] = true
			if path, ok := strings.CutPrefix(name, "template.yaml:"); ok {
				resource, property, _ := strings.Cut(path, ".")
				got := int64(-1)
				if p, ok := tmpl.Parameters[resource]; ok {
					fmt.Sscan(fmt.Sprint(p.Default), &got)
					property = resource
				} else if r := stack.Resources[resource]; r != nil {
					got = int64(r.Int(property))
				}
				last := property[strings.LastIndexByte(property, '.')+1:]
				if got *= unitOf(last, timed); got != n {
					t.Errorf("%s: docs/limits.md says %s, %s is %d", cells[0], cells[value], name, got)
				}
				continue
			}
			want := n
			if timed {
				want /= unitOf(name, timed)
			}
			if found, ok := source.holds(name, want); !found || !ok {
				t.Errorf("%s: docs/limits.md says %s, which is not what %s is (%v, found: %v)", cells[0], cells[value], name, source.values[name], found)
			}
		}
	}
	if rows == 0 {
		t.Fatal("docs/limits.md has no table")
	}
	limit := regexp.MustCompile(`\.((max|min|default)[A-Z]\w*|[A-Z]\w*)$`)
	var missing []string
	for name := range source.values {
		if limit.MatchString(name) && !listed[name] && unlisted[name] == "" {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	for _, name := range missing {
		t.Errorf("docs/limits.md has no row of %s, which is %v: add one, or say in unlisted why not", name, source.values[name])
	}
	for name := range unlisted {
		if listed[name] || source.values[name] == nil {
			t.Errorf("%s is listed, or is not there: it needs no entry in unlisted", name)
		}
	}
}
