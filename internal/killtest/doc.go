// Package killtest kills processes. Its tests play missions, Runs with tools of
// every retry class, payloads in the BlobStore, several exchanges and clients
// that post, abort and delete, as processes of their own on durable adapters;
// each is killed at each of its writes in turn: before the write, when it has
// taken effect and nobody knows, and when it is known. Another process, one
// lease and one sweep later, goes on; and what comes of it is compared with the
// mission that nobody disturbed.
//
// By default a sample of the kill points is tried; PSYCH_TEST_LARGE=1 tries all:
//
//	PSYCH_TEST_LARGE=1 go run ./internal/emulators -- go test -timeout 60m ./internal/killtest
package killtest
