package psych

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// A Skill is a named text that the model loads with load_skill when it needs
// it; until then only name and description are in the prompt.
type Skill struct {
	Name        string `json:"name"`        // 1 to 64 of [A-Za-z0-9_-], unique in the Spec
	Description string `json:"description"` // one line, 1 to 500 bytes
	Body        string `json:"body"`        // 1 to PageChars characters
}

// loadSkillName is the tool that a Spec with skills has.
const loadSkillName = "load_skill"

type loadSkillArgs struct {
	Name string `json:"name" jsonschema:"of the skill, as the list of skills has it"`
}

// loadSkill is the tool but for what it runs, which a Spec decides.
var loadSkill = sync.OnceValue(func() *Tool {
	t := &Tool{
		def:  ToolDef{Name: loadSkillName, Description: "Loads the text of a skill, by its name."},
		opts: ToolOptions{Idempotent: true, Pages: true},
	}
	t.derive(reflect.TypeFor[loadSkillArgs]())
	return t
})

// skillTool is load_skill for the skills of a Spec.
func skillTool(skills []Skill) *Tool {
	t := *loadSkill()
	t.run = func(_ context.Context, c *Call) (*Result, error) {
		var in loadSkillArgs
		if err := t.args.decode(loadSkillName, c.Arguments, &in); err != nil {
			return nil, err
		}
		names := make([]string, len(skills))
		for i, s := range skills {
			if s.Name == in.Name {
				return Text(s.Body), nil
			}
			names[i] = s.Name
		}
		return nil, fmt.Errorf("there is no skill %.80q. There are: %.2000s", in.Name, strings.Join(nearest(in.Name, names, 50), ", "))
	}
	return &t
}

// skillIndex is the block of zone 1 that lists the skills.
func skillIndex(skills []Skill) string {
	var b strings.Builder
	b.WriteString("Skills. Each is a text to load with " + loadSkillName + " before you do what it is for:")
	for _, s := range skills {
		b.WriteString("\n- " + s.Name + ": " + s.Description)
	}
	return b.String()
}

func (ps *problems) skills(skills []Skill) {
	first := map[string]int{}
	for i, s := range skills {
		path := fmt.Sprintf("skills[%d]", i)
		if !legalToolName(s.Name) {
			ps.add(path+".name", "is %.80q: want 1 to 64 of [A-Za-z0-9_-]", s.Name)
		}
		if at, ok := first[s.Name]; ok {
			ps.add(path+".name", "%.80q stands twice, in skills[%d] too", s.Name, at)
		} else {
			first[s.Name] = i
		}
		if s.Description == "" {
			ps.add(path+".description", "is empty: want the line by which the model chooses it")
		}
		ps.label(path+".description", s.Description, 500)
		chars := len([]rune(s.Body))
		switch {
		case s.Body == "":
			ps.add(path+".body", "is empty")
		case chars > PageChars:
			ps.add(path+".body", "has %d characters: want at most %d, one page", chars, PageChars)
		}
	}
}
