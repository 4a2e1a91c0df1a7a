package script

// recent is a map that forgets: it holds the last entries that were put or
// got, between max and twice as many.
type recent[K comparable, V any] struct {
	max        int
	young, old map[K]V
}

func newRecent[K comparable, V any](max int) *recent[K, V] {
	return &recent[K, V]{max: max, young: make(map[K]V)}
}

func (r *recent[K, V]) get(k K) (V, bool) {
	if v, ok := r.young[k]; ok {
		return v, true
	}
	v, ok := r.old[k]
	if ok {
		r.put(k, v)
	}
	return v, ok
}

func (r *recent[K, V]) put(k K, v V) {
	if _, ok := r.young[k]; !ok && len(r.young) >= r.max {
		r.old, r.young = r.young, make(map[K]V)
	}
	r.young[k] = v
}
