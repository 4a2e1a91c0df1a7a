// Package template reads a template of CloudFormation or SAM as far as tests
// want to hold it against code: it resolves parameters, conditions and intrinsic
// functions, and merges SAM's Globals into functions. What a resource is called
// once it is deployed stands as ⟨LogicalID⟩, and an attribute of it as
// ⟨LogicalID.Attribute⟩.
package template

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A Template is what a file says, unresolved. Intrinsic functions have their
// long form.
type Template struct {
	Parameters map[string]Parameter
	Conditions map[string]any
	Resources  map[string]*Resource
	Globals    map[string]any // of functions
	Outputs    map[string]any

	used map[string]bool // parameters and conditions that Resolve met
}

// A Parameter is one of a template. Default is "" also where there is none.
type Parameter struct {
	Type, Default  string
	HasDefault     bool
	MinValue       string
	AllowedPattern string
	Description    string
}

// A Resource is one of a template, or of a Stack.
type Resource struct {
	ID, Type                            string
	DeletionPolicy, UpdateReplacePolicy string
	BuildMethod                         string // of a function's Metadata
	Properties                          map[string]any
}

// A Stack is a template with everything resolved.
type Stack struct {
	Resources map[string]*Resource
	Outputs   map[string]string
}

// Read reads the template in a file.
func Read(file string) (*Template, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// Parse reads a template.
func Parse(data []byte) (*Template, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	if len(doc.Content) != 1 {
		return nil, fmt.Errorf("template: want one document")
	}
	v, err := value(doc.Content[0])
	if err != nil {
		return nil, err
	}
	top, _ := v.(map[string]any)
	t := &Template{
		Parameters: map[string]Parameter{}, Conditions: section(top, "Conditions"), Resources: map[string]*Resource{},
		Globals: section(section(top, "Globals"), "Function"), Outputs: section(top, "Outputs"), used: map[string]bool{},
	}
	for name, v := range section(top, "Parameters") {
		p, _ := v.(map[string]any)
		_, has := p["Default"]
		t.Parameters[name] = Parameter{
			Type: text(p["Type"]), Default: text(p["Default"]), HasDefault: has, MinValue: text(p["MinValue"]),
			AllowedPattern: text(p["AllowedPattern"]), Description: text(p["Description"]),
		}
	}
	for id, v := range section(top, "Resources") {
		r, _ := v.(map[string]any)
		t.Resources[id] = &Resource{
			ID: id, Type: text(r["Type"]), DeletionPolicy: text(r["DeletionPolicy"]), UpdateReplacePolicy: text(r["UpdateReplacePolicy"]),
			BuildMethod: text(section(r, "Metadata")["BuildMethod"]), Properties: section(r, "Properties"),
		}
	}
	if len(t.Resources) == 0 {
		return nil, fmt.Errorf("template: it has no resources")
	}
	return t, nil
}

func section(m map[string]any, name string) map[string]any {
	s, _ := m[name].(map[string]any)
	return s
}

// text is a scalar as it is written; "" for anything else.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case nil, map[string]any, []any:
		return ""
	}
	return fmt.Sprint(v)
}

// value makes a node what encoding/json would, with intrinsic functions in
// their long form.
func value(n *yaml.Node) (any, error) {
	if n.Kind == yaml.AliasNode {
		return nil, fmt.Errorf("template: line %d: CloudFormation has no aliases", n.Line)
	}
	plain := *n
	intrinsic := ""
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		intrinsic, plain.Tag = strings.TrimPrefix(n.Tag, "!"), ""
	}
	v, err := untagged(&plain)
	if err != nil || intrinsic == "" {
		return v, err
	}
	switch intrinsic {
	case "Ref", "Condition":
	case "GetAtt":
		if s, ok := v.(string); ok {
			id, attribute, _ := strings.Cut(s, ".")
			v = []any{id, attribute}
		}
		intrinsic = "Fn::GetAtt"
	default:
		intrinsic = "Fn::" + intrinsic
	}
	return map[string]any{intrinsic: v}, nil
}

func untagged(n *yaml.Node) (any, error) {
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if _, twice := m[key]; twice {
				return nil, fmt.Errorf("template: line %d: %s stands twice", n.Content[i].Line, key)
			}
			v, err := value(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			m[key] = v
		}
		return m, nil
	case yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			v, err := value(c)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, fmt.Errorf("template: line %d: %w", n.Line, err)
	}
	return v, nil
}

// Pseudo parameters of a stack that Resolve makes.
var pseudo = map[string]string{
	"AWS::AccountId": "123456789012", "AWS::Partition": "aws", "AWS::Region": "eu-central-1", "AWS::StackName": "psych", "AWS::URLSuffix": "amazonaws.com",
}

// noValue stands for AWS::NoValue, until what has it is left out.
type noValue struct{}

// Resolve makes a Stack with the given parameters, and the defaults of others.
// An unknown parameter, one without a value, and a reference to what the
// template does not have are errors.
func (t *Template) Resolve(parameters map[string]string) (*Stack, error) {
	for name := range parameters {
		if _, ok := t.Parameters[name]; !ok {
			return nil, fmt.Errorf("template: it has no parameter %s", name)
		}
	}
	r := &resolver{t, parameters}
	s := &Stack{Resources: map[string]*Resource{}, Outputs: map[string]string{}}
	for _, id := range slices.Sorted(maps.Keys(t.Resources)) {
		from := t.Resources[id]
		properties := from.Properties
		if from.Type == "AWS::Serverless::Function" {
			properties = merge(t.Globals, properties)
		}
		v, err := r.resolve(properties)
		if err != nil {
			return nil, fmt.Errorf("template: %s: %w", id, err)
		}
		to := *from
		to.Properties, _ = v.(map[string]any)
		s.Resources[id] = &to
	}
	for name, o := range t.Outputs {
		m, _ := o.(map[string]any)
		v, err := r.resolve(m["Value"])
		if err != nil {
			return nil, fmt.Errorf("template: output %s: %w", name, err)
		}
		s.Outputs[name] = text(v)
	}
	return s, nil
}

// Unused lists parameters and conditions that no Resolve met.
func (t *Template) Unused() []string {
	var names []string
	for name := range t.Parameters {
		if !t.used[name] {
			names = append(names, "parameter "+name)
		}
	}
	for name := range t.Conditions {
		if !t.used[name] {
			names = append(names, "condition "+name)
		}
	}
	slices.Sort(names)
	return names
}

// merge is SAM's: maps are merged, and what else stands in both is the
// function's.
func merge(global, own map[string]any) map[string]any {
	m := maps.Clone(global)
	if m == nil {
		m = map[string]any{}
	}
	for k, v := range own {
		a, ok1 := m[k].(map[string]any)
		b, ok2 := v.(map[string]any)
		if ok1 && ok2 {
			v = merge(a, b)
		}
		m[k] = v
	}
	return m
}

type resolver struct {
	t          *Template
	parameters map[string]string
}

// resolve makes a value without intrinsic functions.
func (r *resolver) resolve(v any) (any, error) {
	switch v := v.(type) {
	case []any:
		list := []any{}
		for _, e := range v {
			e, err := r.resolve(e)
			if err != nil {
				return nil, err
			}
			if e != (noValue{}) {
				list = append(list, e)
			}
		}
		return list, nil
	case map[string]any:
		if len(v) == 1 {
			for name, arg := range v {
				if name == "Ref" || name == "Condition" && text(arg) != "" || strings.HasPrefix(name, "Fn::") {
					return r.call(name, arg)
				}
			}
		}
		m := map[string]any{}
		for k, e := range v {
			e, err := r.resolve(e)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			if e != (noValue{}) {
				m[k] = e
			}
		}
		return m, nil
	}
	return v, nil
}

func (r *resolver) call(name string, arg any) (any, error) {
	switch name {
	case "Ref":
		return r.ref(text(arg))
	case "Condition":
		return r.condition(text(arg))
	case "Fn::GetAtt":
		parts, _ := arg.([]any)
		if len(parts) != 2 || r.t.Resources[text(parts[0])] == nil {
			return nil, fmt.Errorf("GetAtt %v: there is no such resource", arg)
		}
		return "⟨" + text(parts[0]) + "." + text(parts[1]) + "⟩", nil
	case "Fn::Sub":
		s, ok := arg.(string)
		if !ok {
			return nil, fmt.Errorf("!Sub %v: want one text", arg)
		}
		return r.sub(s)
	}
	list, _ := arg.([]any)
	if name == "Fn::If" && len(list) == 3 {
		is, err := r.condition(text(list[0]))
		if err != nil {
			return nil, err
		}
		if is {
			return r.resolve(list[1])
		}
		return r.resolve(list[2])
	}
	v, err := r.resolve(arg)
	if err != nil {
		return nil, err
	}
	list, _ = v.([]any)
	switch {
	case name == "Fn::Not" && len(list) == 1:
		if b, ok := list[0].(bool); ok {
			return !b, nil
		}
	case name == "Fn::Equals" && len(list) == 2:
		return text(list[0]) == text(list[1]), nil
	case name == "Fn::Join" && len(list) == 2:
		parts, _ := list[1].([]any)
		var all []string
		for _, p := range parts {
			all = append(all, text(p))
		}
		return strings.Join(all, text(list[0])), nil
	}
	return nil, fmt.Errorf("%s of %v: this reader does not know it", name, arg)
}

func (r *resolver) ref(name string) (any, error) {
	if p, ok := r.t.Parameters[name]; ok {
		r.t.used[name] = true
		v, given := r.parameters[name]
		if !given {
			if !p.HasDefault {
				return nil, fmt.Errorf("the parameter %s has no value", name)
			}
			v = p.Default
		}
		if p.Type == "CommaDelimitedList" {
			list := []any{}
			for part := range strings.SplitSeq(v, ",") {
				list = append(list, strings.TrimSpace(part))
			}
			return list, nil
		}
		return v, nil
	}
	if name == "AWS::NoValue" {
		return noValue{}, nil
	}
	if v, ok := pseudo[name]; ok {
		return v, nil
	}
	if r.t.Resources[name] == nil {
		return nil, fmt.Errorf("!Ref %s: there is no such parameter or resource", name)
	}
	return "⟨" + name + "⟩", nil
}

func (r *resolver) condition(name string) (bool, error) {
	c, ok := r.t.Conditions[name]
	if !ok {
		return false, fmt.Errorf("there is no condition %q", name)
	}
	r.t.used[name] = true
	v, err := r.resolve(c)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, fmt.Errorf("the condition %s is %v", name, v)
	}
	return b, nil
}

var variable = regexp.MustCompile(`\$\{([^}!][^}]*)\}`)

func (r *resolver) sub(s string) (any, error) {
	var failed error
	out := variable.ReplaceAllStringFunc(s, func(m string) string {
		name := m[2 : len(m)-1]
		var v any
		var err error
		if id, attribute, ok := strings.Cut(name, "."); ok {
			v, err = r.call("Fn::GetAtt", []any{id, attribute})
		} else {
			v, err = r.ref(name)
		}
		if err != nil && failed == nil {
			failed = fmt.Errorf("!Sub %q: %w", s, err)
		}
		return text(v)
	})
	return out, failed
}

// Get returns what stands at a path of properties, with dots between names.
func (r *Resource) Get(path string) any {
	var v any = r.Properties
	for name := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// Text is Get of a scalar, as it is written.
func (r *Resource) Text(path string) string { return text(r.Get(path)) }

// Int is Get of a number; -1 where there is none.
func (r *Resource) Int(path string) int {
	n := -1
	fmt.Sscan(r.Text(path), &n) // what is no number leaves it
	return n
}

// List is Get of texts, or of one.
func (r *Resource) List(path string) []string { return texts(r.Get(path)) }

func texts(v any) (all []string) {
	list, ok := v.([]any)
	if !ok && v != nil {
		return []string{text(v)}
	}
	for _, e := range list {
		all = append(all, text(e))
	}
	return all
}

// OfType lists the resources of a type, by id.
func (s *Stack) OfType(kind string) (all []*Resource) {
	for _, id := range slices.Sorted(maps.Keys(s.Resources)) {
		if s.Resources[id].Type == kind {
			all = append(all, s.Resources[id])
		}
	}
	return all
}

// Named returns the resource that ⟨ID⟩ or ⟨ID.Attribute⟩ stands for; nil if v is
// no such reference.
func (s *Stack) Named(v string) *Resource {
	rest, ok := strings.CutPrefix(v, "⟨")
	if rest, ok2 := strings.CutSuffix(rest, "⟩"); ok && ok2 {
		id, _, _ := strings.Cut(rest, ".")
		return s.Resources[id]
	}
	return nil
}

// Functions lists the functions.
func (s *Stack) Functions() []*Resource { return s.OfType("AWS::Serverless::Function") }

// Env is the environment of a function.
func (r *Resource) Env() map[string]string {
	m, _ := r.Get("Environment.Variables").(map[string]any)
	env := map[string]string{}
	for k, v := range m {
		env[k] = text(v)
	}
	return env
}

// An Event is a source of a function's events.
type Event struct{ *Resource }

// Events lists those of a function, by name.
func (r *Resource) Events() (all []Event) {
	m, _ := r.Get("Events").(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		e, _ := m[name].(map[string]any)
		properties, _ := e["Properties"].(map[string]any)
		all = append(all, Event{&Resource{ID: name, Type: text(e["Type"]), Properties: properties}})
	}
	return all
}

// A Grant is one action on one resource that a statement of a role permits.
type Grant struct{ Sid, Action, Resource string }

// Grants lists what the role of a function permits, an error where it says it
// in another way than as one role with inline statements that allow.
func (s *Stack) Grants(function *Resource) (all []Grant, err error) {
	role := s.Named(function.Text("Role"))
	if role == nil || role.Type != "AWS::IAM::Role" {
		return nil, fmt.Errorf("%s: its role %q is none of the template", function.ID, function.Text("Role"))
	}
	if role.Get("ManagedPolicyArns") != nil || function.Get("Policies") != nil {
		return nil, fmt.Errorf("%s: it has policies that are not written out", function.ID)
	}
	policies, _ := role.Get("Policies").([]any)
	for _, p := range policies {
		m, _ := p.(map[string]any)
		statements, _ := section(m, "PolicyDocument")["Statement"].([]any)
		for _, st := range statements {
			st, _ := st.(map[string]any)
			if text(st["Effect"]) != "Allow" || st["NotAction"] != nil || st["NotResource"] != nil {
				return nil, fmt.Errorf("%s: statement %s: this reader knows Allow, Action and Resource alone", role.ID, text(st["Sid"]))
			}
			for _, action := range texts(st["Action"]) {
				for _, resource := range texts(st["Resource"]) {
					all = append(all, Grant{text(st["Sid"]), action, resource})
				}
			}
		}
	}
	return all, nil
}
