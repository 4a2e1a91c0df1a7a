package lexical

import (
	"encoding/json"
	"testing"
	"time"
)

// BenchmarkNewSegment also tells how long indexing takes compared with decoding
// the same tools' JSON, whose schemas stay bytes.
func BenchmarkNewSegment(b *testing.B) {
	servers := generated(400, 25)
	type property struct {
		Type        string `json:"type"`
		Description string `json:"description"`
	}
	type schema struct {
		Type       string              `json:"type"`
		Properties map[string]property `json:"properties"`
	}
	type tool struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		InputSchema any    `json:"inputSchema"`
	}
	var texts [][]byte
	for _, s := range servers {
		var tools []tool
		for _, t := range s.tools {
			in := schema{"object", map[string]property{}}
			for _, a := range t.Args {
				in.Properties[a] = property{"string", "What to take for " + a + "."}
			}
			tools = append(tools, tool{t.Name, t.Text, in})
		}
		text, err := json.Marshal(tools)
		if err != nil {
			b.Fatal(err)
		}
		texts = append(texts, text)
	}

	var decoding, indexing time.Duration
	for b.Loop() {
		start := time.Now()
		for _, text := range texts {
			var tools []struct {
				Name        string          `json:"name"`
				Description string          `json:"description"`
				InputSchema json.RawMessage `json:"inputSchema"`
			}
			if err := json.Unmarshal(text, &tools); err != nil {
				b.Fatal(err)
			}
		}
		half := time.Now()
		build(servers)
		decoding += half.Sub(start)
		indexing += time.Since(half)
	}
	b.ReportMetric(float64(indexing)/float64(decoding), "indexing/decoding")
	b.ReportMetric(float64(indexing.Microseconds())/float64(b.N)/1000, "indexing-ms/10k-tools")
}

func BenchmarkSearch(b *testing.B) {
	segments := build(generated(400, 25))
	for _, c := range []struct{ name, query string }{
		{"Words", "get the status of a shipment and export it as a csv file"},
		{"Typos", "get the staus of a shipmnt and exprt it as a csv file"},
		{"Name", "validate_certificate"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Search(segments, c.query, Options{Limit: 20})
			}
		})
	}
}
