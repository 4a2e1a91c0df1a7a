package contracttest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

// Each rule must catch the stores that break it: a rule without
// one checks nothing that we know of.
func TestBlobStoreRulesCatch(t *testing.T) {
	fakes := make(map[string][]blobFake)
	for _, f := range blobFakes() {
		fakes[f.rule] = append(fakes[f.rule], f)
	}
	for _, r := range contracttest.BlobStoreRules() {
		if len(fakes[r.Name]) == 0 {
			t.Errorf("rule %s has no fake that it must catch", r.Name)
		}
		for _, f := range fakes[r.Name] {
			t.Run(r.Name+"/"+f.what, func(t *testing.T) {
				s := &blobFaults{BlobStore: memory.NewBlobs(nil)}
				f.breaks(s)
				fixture := &contracttest.Fixture[psych.BlobStore]{Port: s}
				fixture.Reopen = func(context.Context) (psych.BlobStore, error) { return memory.NewBlobs(nil), nil }
				if r.Check(t.Context(), fixture) == nil {
					t.Errorf("%s was not caught: %s", f.what, r.Promise)
				}
			})
		}
		delete(fakes, r.Name)
	}
	for name := range fakes {
		t.Errorf("there are fakes for %s, which is no rule", name)
	}
}

// A blobFake breaks a store so that rule must catch it.
type blobFake struct {
	rule, what string
	breaks     func(s *blobFaults)
}

// A blobFaults is a sound store whose methods a fake puts others before; they
// call the embedded store.
type blobFaults struct {
	psych.BlobStore
	put       func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error)
	open      func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error)
	stat      func(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error)
	delete    func(ctx context.Context, key psych.BlobKey) error
	deleteRun func(ctx context.Context, run psych.RunKey) error
}

func (s *blobFaults) Put(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
	if s.put != nil {
		return s.put(ctx, key, contentType, r)
	}
	return s.BlobStore.Put(ctx, key, contentType, r)
}

func (s *blobFaults) Open(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
	if s.open != nil {
		return s.open(ctx, key, offset, length)
	}
	return s.BlobStore.Open(ctx, key, offset, length)
}

func (s *blobFaults) Stat(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
	if s.stat != nil {
		return s.stat(ctx, key)
	}
	return s.BlobStore.Stat(ctx, key)
}

func (s *blobFaults) Delete(ctx context.Context, key psych.BlobKey) error {
	if s.delete != nil {
		return s.delete(ctx, key)
	}
	return s.BlobStore.Delete(ctx, key)
}

func (s *blobFaults) DeleteRun(ctx context.Context, run psych.RunKey) error {
	if s.deleteRun != nil {
		return s.deleteRun(ctx, run)
	}
	return s.BlobStore.DeleteRun(ctx, run)
}

// reads makes Put store what f makes of r, and report what it stored.
func (s *blobFaults) reads(f func(r io.Reader) io.Reader) {
	s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
		return s.BlobStore.Put(ctx, key, contentType, f(r))
	}
}

// typed makes Put store f of the content type, and report the true one.
func (s *blobFaults) typed(f func(string) string) {
	s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
		info, err := s.BlobStore.Put(ctx, key, f(contentType), r)
		info.ContentType = contentType
		return info, err
	}
}

// ranged makes Open read the range that f returns.
func (s *blobFaults) ranged(f func(offset, length, size int64) (int64, int64, error)) {
	s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
		info, err := s.BlobStore.Stat(ctx, key)
		if err != nil {
			return nil, info, err
		}
		if offset, length, err = f(offset, length, info.Size); err != nil {
			return nil, info, err
		}
		return s.BlobStore.Open(ctx, key, offset, length)
	}
}

// keyed makes every method address f of its key.
func (s *blobFaults) keyed(f func(psych.BlobKey) psych.BlobKey) {
	s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
		return s.BlobStore.Put(ctx, f(key), contentType, r)
	}
	s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
		return s.BlobStore.Open(ctx, f(key), offset, length)
	}
	s.stat = func(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
		return s.BlobStore.Stat(ctx, f(key))
	}
	s.delete = func(ctx context.Context, key psych.BlobKey) error { return s.BlobStore.Delete(ctx, f(key)) }
	s.deleteRun = func(ctx context.Context, run psych.RunKey) error {
		return s.BlobStore.DeleteRun(ctx, f(psych.BlobKey{Tenant: run.Tenant, RunID: run.RunID}).Run())
	}
}

func (s *blobFaults) tenants(f func(string) string) {
	s.keyed(func(k psych.BlobKey) psych.BlobKey {
		if k.Tenant = f(k.Tenant); k.Tenant == "" {
			k.Tenant = "empty"
		}
		return k
	})
}

func (s *blobFaults) calls(f func(string) string) {
	s.keyed(func(k psych.BlobKey) psych.BlobKey { k.CallID = f(k.CallID); return k })
}

// listed makes DeleteRun delete the blobs that f chooses of all that were put.
func (s *blobFaults) listed(f func(run psych.RunKey, all []psych.BlobKey) []psych.BlobKey) {
	var mu sync.Mutex
	var all []psych.BlobKey
	s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
		mu.Lock()
		all = append(all, key)
		mu.Unlock()
		return s.BlobStore.Put(ctx, key, contentType, r)
	}
	s.deleteRun = func(ctx context.Context, run psych.RunKey) error {
		mu.Lock()
		defer mu.Unlock()
		for _, key := range f(run, all) {
			if err := s.BlobStore.Delete(ctx, key); err != nil {
				return err
			}
		}
		return nil
	}
}

func (s *blobFaults) listedWhere(match func(run psych.RunKey, key psych.BlobKey) bool) {
	s.listed(func(run psych.RunKey, all []psych.BlobKey) []psych.BlobKey {
		return slices.DeleteFunc(slices.Clone(all), func(key psych.BlobKey) bool { return !match(run, key) })
	})
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// A pieceReader opens the blob anew for every piece it reads.
type pieceReader struct {
	s    psych.BlobStore
	key  psych.BlobKey
	at   int64
	gone error // what a blob that is gone reads as
}

func (r *pieceReader) Read(p []byte) (int, error) {
	piece, _, err := r.s.Open(context.Background(), r.key, r.at, int64(len(p)))
	if err != nil {
		return 0, r.gone
	}
	n, err := piece.Read(p)
	r.at += int64(n)
	return n, err
}

func (r *pieceReader) Close() error { return nil }

var errFake = errors.New("a fake's error that matches nothing")

func blobFakes() []blobFake {
	fakes := []blobFake{
		{"PutStores", "drops the last byte", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				data, _ := io.ReadAll(r)
				_, err := s.BlobStore.Put(ctx, key, contentType, bytes.NewReader(data[:len(data)-1]))
				return psych.BlobInfo{Size: int64(len(data)), ContentType: contentType}, err
			}
		}},
		{"PutStores", "stores nothing", func(s *blobFaults) {
			s.put = func(_ context.Context, _ psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				n, err := io.Copy(io.Discard, r)
				return psych.BlobInfo{Size: n, ContentType: contentType}, err
			}
		}},
		{"PutInfo", "reports no size", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				info, err := s.BlobStore.Put(ctx, key, contentType, r)
				info.Size = 0
				return info, err
			}
		}},
		{"PutInfo", "reports no content type", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				info, err := s.BlobStore.Put(ctx, key, contentType, r)
				info.ContentType = ""
				return info, err
			}
		}},
		{"PutSmallReads", "takes an empty read for the end", func(s *blobFaults) {
			s.reads(func(r io.Reader) io.Reader {
				return readFunc(func(p []byte) (int, error) {
					n, err := r.Read(p)
					if n == 0 && err == nil {
						err = io.EOF
					}
					return n, err
				})
			})
		}},
		{"PutSmallReads", "takes a short read for the end", func(s *blobFaults) {
			s.reads(func(r io.Reader) io.Reader {
				return readFunc(func(p []byte) (int, error) {
					n, err := r.Read(p)
					if n < len(p) && err == nil {
						err = io.EOF
					}
					return n, err
				})
			})
		}},
		{"PutEOFWithData", "drops what comes with io.EOF", func(s *blobFaults) {
			s.reads(func(r io.Reader) io.Reader {
				return readFunc(func(p []byte) (int, error) {
					n, err := r.Read(p)
					if err == io.EOF {
						n = 0
					}
					return n, err
				})
			})
		}},
		{"PutLarge", "stores the first 8 MiB", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				info, err := s.BlobStore.Put(ctx, key, contentType, io.LimitReader(r, 8<<20))
				n, _ := io.Copy(io.Discard, r)
				info.Size += n
				return info, err
			}
		}},
		{"PutLarge", "repeats a part", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				data, err := io.ReadAll(r)
				if part := 5 << 20; err == nil && len(data) > 2*part {
					copy(data[part:2*part], data[:part])
				}
				return s.BlobStore.Put(ctx, key, contentType, bytes.NewReader(data))
			}
		}},
		{"PutStreams", "holds all of it", func(*blobFaults) {}},
		{"PutEmpty", "stores nothing for no bytes", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				data, err := io.ReadAll(r)
				if err != nil || len(data) == 0 {
					return psych.BlobInfo{ContentType: contentType}, err
				}
				return s.BlobStore.Put(ctx, key, contentType, bytes.NewReader(data))
			}
		}},
		{"PutContentType", "lowers it", func(s *blobFaults) { s.typed(strings.ToLower) }},
		{"PutContentType", "trims it", func(s *blobFaults) { s.typed(strings.TrimSpace) }},
		{"PutContentType", "drops parameters", func(s *blobFaults) {
			s.typed(func(t string) string { t, _, _ = strings.Cut(t, ";"); return t })
		}},
		{"PutContentType", "replaces an empty one", func(s *blobFaults) {
			s.typed(func(t string) string {
				if t == "" {
					return "application/octet-stream"
				}
				return t
			})
		}},
		{"PutContentType", "drops what is not ASCII", func(s *blobFaults) {
			s.typed(func(t string) string {
				return strings.Map(func(r rune) rune {
					if r > 127 {
						return -1
					}
					return r
				}, t)
			})
		}},
		{"PutContentType", "folds lines", func(s *blobFaults) {
			s.typed(func(t string) string { return strings.ReplaceAll(t, "\r\n", " ") })
		}},
		{"PutReplaces", "keeps the first", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				if _, err := s.BlobStore.Stat(ctx, key); err == nil {
					n, err := io.Copy(io.Discard, r)
					return psych.BlobInfo{Size: n, ContentType: contentType}, err
				}
				return s.BlobStore.Put(ctx, key, contentType, r)
			}
		}},
		{"PutReplaces", "writes over the old without cutting it", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				data, _ := io.ReadAll(r)
				info := psych.BlobInfo{Size: int64(len(data)), ContentType: contentType}
				if old, _, err := s.BlobStore.Open(ctx, key, info.Size, -1); err == nil {
					rest, _ := io.ReadAll(old)
					data = append(data, rest...)
				}
				_, err := s.BlobStore.Put(ctx, key, contentType, bytes.NewReader(data))
				return info, err
			}
		}},
		{"PutReplaces", "keeps the old content type", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				old, err := s.BlobStore.Stat(ctx, key)
				if err != nil {
					old.ContentType = contentType
				}
				info, err := s.BlobStore.Put(ctx, key, old.ContentType, r)
				info.ContentType = contentType
				return info, err
			}
		}},
		{"PutUnfinished", "creates the blob first", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				if _, err := s.BlobStore.Put(ctx, key, contentType, strings.NewReader("")); err != nil {
					return psych.BlobInfo{}, err
				}
				return s.BlobStore.Put(ctx, key, contentType, r)
			}
		}},
		{"PutUnfinished", "shows parts", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				var part bytes.Buffer
				shown := false
				return s.BlobStore.Put(ctx, key, contentType, readFunc(func(p []byte) (int, error) {
					n, err := r.Read(p)
					part.Write(p[:n])
					if !shown && part.Len() > 1<<20 {
						shown = true
						if _, err := s.BlobStore.Put(ctx, key, contentType, bytes.NewReader(part.Bytes())); err != nil {
							return n, err
						}
					}
					return n, err
				}))
			}
		}},
		{"PutConcurrentReaders", "shows the first half before the whole", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				data, err := io.ReadAll(r)
				if err != nil {
					return psych.BlobInfo{}, err
				}
				if _, err := s.BlobStore.Put(ctx, key, contentType, bytes.NewReader(data[:len(data)/2])); err != nil {
					return psych.BlobInfo{}, err
				}
				time.Sleep(3 * time.Millisecond)
				return s.BlobStore.Put(ctx, key, contentType, bytes.NewReader(data))
			}
		}},
		{"PutConcurrentReaders", "keeps the content type apart from the bytes", func(s *blobFaults) {
			var types sync.Map
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				types.Store(key, contentType)
				time.Sleep(3 * time.Millisecond)
				return s.BlobStore.Put(ctx, key, contentType, r)
			}
			s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
				r, info, err := s.BlobStore.Open(ctx, key, offset, length)
				if t, ok := types.Load(key); ok {
					info.ContentType = t.(string)
				}
				return r, info, err
			}
		}},
		{"PutReaderFails", "stores what it had read", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				data, err := io.ReadAll(r)
				info, putErr := s.BlobStore.Put(ctx, key, contentType, bytes.NewReader(data))
				return info, errors.Join(err, putErr)
			}
		}},
		{"PutReaderFails", "takes io.ErrUnexpectedEOF for the end", func(s *blobFaults) {
			s.reads(func(r io.Reader) io.Reader { return endsWith(r, io.ErrUnexpectedEOF) })
		}},
		{"PutReaderFails", "takes an error that wraps io.EOF for the end", func(s *blobFaults) {
			s.reads(func(r io.Reader) io.Reader { return endsWith(r, io.EOF) })
		}},
		{"PutReaderFails", "does not wrap the error", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				info, err := s.BlobStore.Put(ctx, key, contentType, r)
				if err != nil {
					err = fmt.Errorf("%w: %v", psych.ErrUnavailable, err)
				}
				return info, err
			}
		}},
		{"PutReaderFailsKeepsOld", "deletes before it writes", deletesFirst},
		{"PutReaderFailsKeepsOld", "removes the blob when it fails", deletesOnError},
		{"PutCancelled", "never looks at ctx", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				return s.BlobStore.Put(context.WithoutCancel(ctx), key, contentType, r)
			}
		}},
		{"PutCancelled", "does not look at ctx when r has ended", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				return s.BlobStore.Put(context.WithoutCancel(ctx), key, contentType, readFunc(func(p []byte) (int, error) {
					if err := ctx.Err(); err != nil {
						return 0, err
					}
					return r.Read(p)
				}))
			}
		}},
		{"PutCancelled", "stores it all the same", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				info, err := s.BlobStore.Put(context.WithoutCancel(ctx), key, contentType, r)
				return info, errors.Join(err, ctx.Err())
			}
		}},
		{"PutCancelledKeepsOld", "deletes before it writes", deletesFirst},
		{"PutCancelledKeepsOld", "removes the blob when it fails", deletesOnError},
		{"PutReopen", "keeps nothing", func(*blobFaults) {}},
		{"OpenRange", "ignores the length", func(s *blobFaults) {
			s.ranged(func(offset, _, _ int64) (int64, int64, error) { return offset, -1, nil })
		}},
		{"OpenRange", "ignores the offset", func(s *blobFaults) {
			s.ranged(func(_, length, _ int64) (int64, int64, error) { return 0, length, nil })
		}},
		{"OpenRange", "takes the end as included", func(s *blobFaults) {
			s.ranged(func(offset, length, _ int64) (int64, int64, error) { return offset, length + 1, nil })
		}},
		{"OpenRange", "reads all for a length of 0", func(s *blobFaults) {
			s.ranged(func(offset, length, _ int64) (int64, int64, error) {
				if length == 0 {
					length = -1
				}
				return offset, length, nil
			})
		}},
		{"OpenRange", "refuses a range that passes the end", func(s *blobFaults) {
			s.ranged(func(offset, length, size int64) (int64, int64, error) {
				if offset+length > size {
					return 0, 0, fmt.Errorf("range: %w", psych.ErrInvalid)
				}
				return offset, length, nil
			})
		}},
		{"OpenToEnd", "takes a negative length for 0", func(s *blobFaults) {
			s.ranged(func(offset, length, _ int64) (int64, int64, error) { return offset, max(length, 0), nil })
		}},
		{"OpenToEnd", "knows -1 alone", func(s *blobFaults) {
			s.ranged(func(offset, length, _ int64) (int64, int64, error) {
				if length < -1 {
					return 0, 0, psych.ErrInvalid
				}
				return offset, length, nil
			})
		}},
		{"OpenPastEnd", "fails past the end", func(s *blobFaults) {
			s.ranged(func(offset, length, size int64) (int64, int64, error) {
				if offset > size {
					return 0, 0, fmt.Errorf("416: %w", psych.ErrInvalid)
				}
				return offset, length, nil
			})
		}},
		{"OpenPastEnd", "fails at the end", func(s *blobFaults) {
			s.ranged(func(offset, length, size int64) (int64, int64, error) {
				if offset >= size {
					return 0, 0, fmt.Errorf("416: %w", psych.ErrInvalid)
				}
				return offset, length, nil
			})
		}},
		{"OpenPastEnd", "begins anew past the end", func(s *blobFaults) {
			s.ranged(func(offset, length, size int64) (int64, int64, error) {
				if offset > size {
					offset = 0
				}
				return offset, length, nil
			})
		}},
		{"OpenHuge", "adds offset and length", func(s *blobFaults) {
			s.ranged(func(offset, length, size int64) (int64, int64, error) {
				if length >= 0 {
					length = max(min(offset+length, size), offset) - offset
				}
				return offset, length, nil
			})
		}},
		{"OpenNegativeOffset", "takes it for 0", func(s *blobFaults) {
			s.ranged(func(offset, length, _ int64) (int64, int64, error) { return max(offset, 0), length, nil })
		}},
		{"OpenNegativeOffset", "counts it from the end", func(s *blobFaults) {
			s.ranged(func(offset, length, size int64) (int64, int64, error) {
				if offset < 0 {
					offset = max(size+offset, 0)
				}
				return offset, length, nil
			})
		}},
		{"OpenNegativeOffset", "fails with another error", func(s *blobFaults) {
			s.ranged(func(offset, length, _ int64) (int64, int64, error) {
				if offset < 0 {
					return 0, 0, errFake
				}
				return offset, length, nil
			})
		}},
		{"OpenInfoWhole", "returns the size of the range", func(s *blobFaults) {
			s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
				r, info, err := s.BlobStore.Open(ctx, key, offset, length)
				if err == nil {
					info.Size = max(info.Size-offset, 0)
					if length >= 0 {
						info.Size = min(info.Size, length)
					}
				}
				return r, info, err
			}
		}},
		{"OpenInfoWhole", "returns none past the end", func(s *blobFaults) {
			s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
				r, info, err := s.BlobStore.Open(ctx, key, offset, length)
				if offset >= info.Size {
					info = psych.BlobInfo{}
				}
				return r, info, err
			}
		}},
		{"OpenMissing", "is empty", func(s *blobFaults) {
			s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
				r, info, err := s.BlobStore.Open(ctx, key, offset, length)
				if errors.Is(err, psych.ErrNotFound) {
					return io.NopCloser(strings.NewReader("")), info, nil
				}
				return r, info, err
			}
		}},
		{"OpenMissing", "does not look for an empty range", func(s *blobFaults) {
			s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
				if length == 0 {
					return io.NopCloser(strings.NewReader("")), psych.BlobInfo{}, nil
				}
				return s.BlobStore.Open(ctx, key, offset, length)
			}
		}},
		{"OpenMissing", "fails with another error", func(s *blobFaults) {
			s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
				r, info, err := s.BlobStore.Open(ctx, key, offset, length)
				if err != nil {
					err = errFake
				}
				return r, info, err
			}
		}},
		{"OpenTwice", "shares a reader", func(s *blobFaults) {
			shared := make(map[psych.BlobKey]io.ReadCloser)
			s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
				r, info, err := s.BlobStore.Open(ctx, key, offset, length)
				if err == nil {
					if old := shared[key]; old != nil {
						r = old
					}
					shared[key] = r
				}
				return r, info, err
			}
		}},
		{"OpenWhileReplaced", "opens it anew for each piece", func(s *blobFaults) { s.pieces(io.EOF) }},
		{"OpenWhileDeleted", "ends early", func(s *blobFaults) { s.pieces(io.EOF) }},
		{"StatMissing", "is empty", func(s *blobFaults) {
			s.stat = func(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
				info, err := s.BlobStore.Stat(ctx, key)
				if errors.Is(err, psych.ErrNotFound) {
					err = nil
				}
				return info, err
			}
		}},
		{"StatMissing", "fails with another error", func(s *blobFaults) {
			s.stat = func(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
				info, err := s.BlobStore.Stat(ctx, key)
				if err != nil {
					err = errFake
				}
				return info, err
			}
		}},
		{"StatMissing", "remembers what was deleted", func(s *blobFaults) {
			var seen sync.Map
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				info, err := s.BlobStore.Put(ctx, key, contentType, r)
				seen.Store(key, info)
				return info, err
			}
			s.stat = func(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
				if info, ok := seen.Load(key); ok {
					return info.(psych.BlobInfo), nil
				}
				return s.BlobStore.Stat(ctx, key)
			}
		}},
		{"DeleteRemoves", "does nothing", func(s *blobFaults) {
			s.delete = func(context.Context, psych.BlobKey) error { return nil }
		}},
		{"DeleteRemoves", "removes the Run", func(s *blobFaults) {
			s.delete = func(ctx context.Context, key psych.BlobKey) error { return s.BlobStore.DeleteRun(ctx, key.Run()) }
		}},
		{"DeleteRemoves", "removes all with the prefix", func(s *blobFaults) {
			s.delete = func(ctx context.Context, key psych.BlobKey) error {
				for _, suffix := range []string{"", "0"} {
					key.CallID += suffix
					if err := s.BlobStore.Delete(ctx, key); err != nil {
						return err
					}
				}
				return nil
			}
		}},
		{"DeleteAbsent", "fails with ErrNotFound", func(s *blobFaults) {
			s.delete = func(ctx context.Context, key psych.BlobKey) error {
				if _, err := s.BlobStore.Stat(ctx, key); err != nil {
					return err
				}
				return s.BlobStore.Delete(ctx, key)
			}
		}},
		{"DeleteRunRemoves", "does nothing", func(s *blobFaults) {
			s.deleteRun = func(context.Context, psych.RunKey) error { return nil }
		}},
		{"DeleteRunRemoves", "lets nothing be stored again", func(s *blobFaults) {
			var dead sync.Map
			s.deleteRun = func(ctx context.Context, run psych.RunKey) error {
				dead.Store(run, true)
				return s.BlobStore.DeleteRun(ctx, run)
			}
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				if _, ok := dead.Load(key.Run()); ok {
					return psych.BlobInfo{}, psych.ErrNotFound
				}
				return s.BlobStore.Put(ctx, key, contentType, r)
			}
		}},
		{"DeleteRunRemoves", "removes results alone", func(s *blobFaults) {
			s.listedWhere(func(run psych.RunKey, key psych.BlobKey) bool {
				return key.Run() == run && strings.HasPrefix(key.CallID, "c")
			})
		}},
		{"DeleteRunMany", "removes one page", func(s *blobFaults) {
			s.listed(func(run psych.RunKey, all []psych.BlobKey) []psych.BlobKey { return all[:min(len(all), 1000)] })
		}},
		{"DeleteRunIsolated", "removes the tenant", func(s *blobFaults) {
			s.listedWhere(func(run psych.RunKey, key psych.BlobKey) bool { return key.Tenant == run.Tenant })
		}},
		{"DeleteRunIsolated", "removes the Run of every tenant", func(s *blobFaults) {
			s.listedWhere(func(run psych.RunKey, key psych.BlobKey) bool { return key.RunID == run.RunID })
		}},
		{"DeleteRunIsolated", "removes the Run of tenants with the prefix", func(s *blobFaults) {
			s.listedWhere(func(run psych.RunKey, key psych.BlobKey) bool {
				return key.RunID == run.RunID && strings.HasPrefix(key.Tenant, run.Tenant)
			})
		}},
		{"DeleteRunIsolated", "ignores case", func(s *blobFaults) {
			s.listedWhere(func(run psych.RunKey, key psych.BlobKey) bool {
				return key.RunID == run.RunID && strings.EqualFold(key.Tenant, run.Tenant)
			})
		}},
		{"DeleteRunIsolated", "cuts the run's id", func(s *blobFaults) {
			s.listedWhere(func(run psych.RunKey, key psych.BlobKey) bool {
				return key.Tenant == run.Tenant && key.RunID[:31] == run.RunID[:31]
			})
		}},
		{"DeleteRunAbsent", "fails with ErrNotFound", func(s *blobFaults) {
			var mu sync.Mutex
			there := make(map[psych.RunKey]bool)
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				mu.Lock()
				there[key.Run()] = true
				mu.Unlock()
				return s.BlobStore.Put(ctx, key, contentType, r)
			}
			s.deleteRun = func(ctx context.Context, run psych.RunKey) error {
				mu.Lock()
				defer mu.Unlock()
				if !there[run] {
					return psych.ErrNotFound
				}
				delete(there, run)
				return s.BlobStore.DeleteRun(ctx, run)
			}
		}},
		{"ForeignTenant", "ignores the tenant", func(s *blobFaults) { s.tenants(func(string) string { return "one" }) }},
		{"ForeignTenant", "cleans paths", func(s *blobFaults) { s.tenants(path.Clean) }},
		{"ForeignRun", "ignores the Run", func(s *blobFaults) {
			s.keyed(func(k psych.BlobKey) psych.BlobKey { k.RunID = strings.Repeat("0", 32); return k })
		}},
		{"ForeignTenant", "deletes every tenant's", func(s *blobFaults) {
			var keys []psych.BlobKey
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				keys = append(keys, key)
				return s.BlobStore.Put(ctx, key, contentType, r)
			}
			s.delete = func(ctx context.Context, key psych.BlobKey) error {
				for _, k := range keys {
					if k.RunID == key.RunID && k.CallID == key.CallID {
						if err := s.BlobStore.Delete(ctx, k); err != nil {
							return err
						}
					}
				}
				return nil
			}
		}},
		{"CallsApart", "drops dots at the end", func(s *blobFaults) {
			s.calls(func(c string) string { return strings.TrimRight(c, ".") })
		}},
		{"CallsApart", "has one separator", func(s *blobFaults) {
			s.calls(strings.NewReplacer("-", "_", ".", "_").Replace)
		}},
		{"CallsApart", "drops extensions", func(s *blobFaults) {
			s.calls(func(c string) string { c, _, _ = strings.Cut(c, "."); return c })
		}},
		{"CallsApart", "cuts long ones", func(s *blobFaults) { s.calls(func(c string) string { return c[:min(len(c), 99)] }) }},
		{"CallsApart", "refuses long ones", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				if len(key.CallID) > 99 {
					return psych.BlobInfo{}, psych.ErrInvalid
				}
				return s.BlobStore.Put(ctx, key, contentType, r)
			}
		}},
		{"CallsApart", "can't store a device's name", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				if strings.HasPrefix(key.CallID, "nul") {
					n, err := io.Copy(io.Discard, r)
					return psych.BlobInfo{Size: n, ContentType: contentType}, err
				}
				return s.BlobStore.Put(ctx, key, contentType, r)
			}
		}},
		{"PutIllegalKey", "accepts it", func(s *blobFaults) { s.keyed(legalKey) }},
		{"PutIllegalKey", "fails with another error", func(s *blobFaults) { s.illegal(errFake) }},
		{"OpenIllegalKey", "finds nothing", func(s *blobFaults) { s.illegal(psych.ErrNotFound) }},
		{"OpenIllegalKey", "accepts it", func(s *blobFaults) { s.keyed(legalKey) }},
		{"StatIllegalKey", "finds nothing", func(s *blobFaults) { s.illegal(psych.ErrNotFound) }},
		{"StatIllegalKey", "accepts it", func(s *blobFaults) { s.keyed(legalKey) }},
		{"DeleteIllegalKey", "does nothing", func(s *blobFaults) { s.illegal(nil) }},
		{"DeleteRunIllegalKey", "does nothing", func(s *blobFaults) { s.illegal(nil) }},
		{"DeleteRunIllegalKey", "fails with another error", func(s *blobFaults) { s.illegal(errFake) }},
		{"PutContextEnded", "does not look", func(s *blobFaults) { s.blind() }},
		{"PutContextEnded", "stores it all the same", func(s *blobFaults) {
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				info, err := s.BlobStore.Put(context.WithoutCancel(ctx), key, contentType, r)
				return info, errors.Join(err, ctx.Err())
			}
		}},
		{"OpenContextEnded", "does not look", func(s *blobFaults) { s.blind() }},
		{"OpenContextEnded", "fails with another error", func(s *blobFaults) {
			s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
				if ctx.Err() != nil {
					return nil, psych.BlobInfo{}, psych.ErrNotFound
				}
				return s.BlobStore.Open(ctx, key, offset, length)
			}
		}},
		{"StatContextEnded", "does not look", func(s *blobFaults) { s.blind() }},
		{"DeleteContextEnded", "does not look", func(s *blobFaults) { s.blind() }},
		{"DeleteContextEnded", "deletes all the same", func(s *blobFaults) {
			s.delete = func(ctx context.Context, key psych.BlobKey) error {
				return errors.Join(s.BlobStore.Delete(context.WithoutCancel(ctx), key), ctx.Err())
			}
		}},
		{"DeleteRunContextEnded", "does not look", func(s *blobFaults) { s.blind() }},
		{"DeleteRunContextEnded", "deletes all the same", func(s *blobFaults) {
			s.deleteRun = func(ctx context.Context, run psych.RunKey) error {
				return errors.Join(s.BlobStore.DeleteRun(context.WithoutCancel(ctx), run), ctx.Err())
			}
		}},
		{"ConcurrentPuts", "fails beside another", func(s *blobFaults) {
			var busy atomic.Int32
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				defer busy.Add(-1)
				if busy.Add(1) > 1 {
					return psych.BlobInfo{}, psych.ErrUnavailable
				}
				time.Sleep(time.Millisecond)
				return s.BlobStore.Put(ctx, key, contentType, r)
			}
		}},
		{"ConcurrentPuts", "shares a buffer", func(s *blobFaults) {
			var mu sync.Mutex
			var last []byte
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				data, err := io.ReadAll(r)
				if err != nil {
					return psych.BlobInfo{}, err
				}
				mu.Lock()
				last = data
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				_, err = s.BlobStore.Put(ctx, key, contentType, bytes.NewReader(last))
				return psych.BlobInfo{Size: int64(len(data)), ContentType: contentType}, err
			}
		}},
		{"ConcurrentMixed", "loses its directory", func(s *blobFaults) {
			var deletions atomic.Int64
			s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
				before := deletions.Load()
				time.Sleep(3 * time.Millisecond)
				if deletions.Load() != before {
					return psych.BlobInfo{}, fmt.Errorf("rename: %w", psych.ErrUnavailable)
				}
				return s.BlobStore.Put(ctx, key, contentType, r)
			}
			s.deleteRun = func(ctx context.Context, run psych.RunKey) error {
				deletions.Add(1)
				return s.BlobStore.DeleteRun(ctx, run)
			}
		}},
	}
	for what, fold := range map[string]func(string) string{
		"lowers":                strings.ToLower,
		"raises":                strings.ToUpper,
		"cleans paths":          path.Clean,
		"roots paths":           func(t string) string { return path.Clean("/" + t) },
		"cuts at NUL":           func(t string) string { t, _, _ = strings.Cut(t, "\x00"); return t },
		"cuts at 127 bytes":     func(t string) string { return strings.ToValidUTF8(t[:min(len(t), 127)], "") },
		"trims dots and spaces": func(t string) string { return strings.TrimRight(t, ". ") },
		"trims white space":     strings.TrimSpace,
		"unescapes":             func(t string) string { u, err := url.PathUnescape(t); return valid(u, t, err) },
		"unescapes queries":     func(t string) string { u, err := url.QueryUnescape(t); return valid(u, t, err) },
		"escapes what is left":  func(t string) string { return strings.ReplaceAll(t, "/", "%2F") },
		"replaces separators":   strings.NewReplacer("/", "_", "\\", "_", ":", "_").Replace,
		"drops other bytes": func(t string) string {
			return strings.Map(func(r rune) rune {
				if r > 127 {
					return '?'
				}
				return r
			}, t)
		},
		"composes": strings.NewReplacer("e\u0301", "\u00e9").Replace,
	} {
		fakes = append(fakes, blobFake{"TenantsApart", what, func(s *blobFaults) { s.tenants(fold) }})
	}
	return fakes
}

func valid(u, t string, err error) string {
	if err != nil || psych.CheckTenant(u) != nil {
		return t
	}
	return u
}

// endsWith makes an error that matches end the end.
func endsWith(r io.Reader, end error) io.Reader {
	return readFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		if errors.Is(err, end) {
			err = io.EOF
		}
		return n, err
	})
}

func deletesFirst(s *blobFaults) {
	s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
		if err := s.BlobStore.Delete(ctx, key); err != nil {
			return psych.BlobInfo{}, err
		}
		return s.BlobStore.Put(ctx, key, contentType, r)
	}
}

func deletesOnError(s *blobFaults) {
	s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
		info, err := s.BlobStore.Put(ctx, key, contentType, r)
		if err != nil {
			err = errors.Join(err, s.BlobStore.Delete(context.WithoutCancel(ctx), key))
		}
		return info, err
	}
}

// pieces makes readers open the blob anew for each piece; one that is gone
// reads as the error gone.
func (s *blobFaults) pieces(gone error) {
	s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
		r, info, err := s.BlobStore.Open(ctx, key, offset, length)
		if err == nil && length < 0 {
			r = &pieceReader{s: s.BlobStore, key: key, at: offset, gone: gone}
		}
		return r, info, err
	}
}

func legalKey(k psych.BlobKey) psych.BlobKey {
	if k.Check() != nil {
		k = psych.BlobKey{Tenant: "legal", RunID: strings.Repeat("0", 32), CallID: "legal"}
	}
	return k
}

// illegal makes every method return err for an illegal key.
func (s *blobFaults) illegal(err error) {
	s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
		if key.Check() != nil {
			return psych.BlobInfo{}, err
		}
		return s.BlobStore.Put(ctx, key, contentType, r)
	}
	s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
		if key.Check() != nil {
			return nil, psych.BlobInfo{}, err
		}
		return s.BlobStore.Open(ctx, key, offset, length)
	}
	s.stat = func(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
		if key.Check() != nil {
			return psych.BlobInfo{}, err
		}
		return s.BlobStore.Stat(ctx, key)
	}
	s.delete = func(ctx context.Context, key psych.BlobKey) error {
		if key.Check() != nil {
			return err
		}
		return s.BlobStore.Delete(ctx, key)
	}
	s.deleteRun = func(ctx context.Context, run psych.RunKey) error {
		if run.Check() != nil {
			return err
		}
		return s.BlobStore.DeleteRun(ctx, run)
	}
}

// blind makes every method act whether its context has ended or not.
func (s *blobFaults) blind() {
	s.put = func(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
		return s.BlobStore.Put(context.WithoutCancel(ctx), key, contentType, r)
	}
	s.open = func(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
		return s.BlobStore.Open(context.WithoutCancel(ctx), key, offset, length)
	}
	s.stat = func(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
		return s.BlobStore.Stat(context.WithoutCancel(ctx), key)
	}
	s.delete = func(ctx context.Context, key psych.BlobKey) error {
		return s.BlobStore.Delete(context.WithoutCancel(ctx), key)
	}
	s.deleteRun = func(ctx context.Context, run psych.RunKey) error {
		return s.BlobStore.DeleteRun(context.WithoutCancel(ctx), run)
	}
}
