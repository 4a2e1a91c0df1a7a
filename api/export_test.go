package api

// Routes are those of the handler, as "METHOD /path".
func Routes() []string {
	var all []string
	for _, e := range routes {
		all = append(all, e.method+" "+e.path)
	}
	return all
}

// Classes are the errors that have a row of the table, with their statuses and
// codes.
func Classes(each func(err error, status int, code string)) {
	for _, c := range classes {
		each(c.err, c.status, c.code)
	}
}

// Listeners is how many follow a Run.
func (h *Handler) Listeners() int {
	h.hub.mu.Lock()
	defer h.hub.mu.Unlock()
	n := 0
	for _, of := range h.hub.listeners {
		n += len(of)
	}
	return n
}
