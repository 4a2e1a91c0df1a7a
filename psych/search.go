package psych

import "context"

// search finds tools for list_tools with a query.
func (r *Runtime) search(ctx context.Context, ts *toolset, q ListQuery) (head string, lines []string, err error) {
	return "", nil, nil
}
