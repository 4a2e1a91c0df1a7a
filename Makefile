# What sam build calls, for the functions of template.yaml: each target leaves a bootstrap, and nothing else, in
# $(ARTIFACTS_DIR). A function of your own is another folder: make a main there, and name it in TURN.
GOOS ?= linux
GOARCH ?= arm64
API ?= ./lambda/api
TURN ?= ./lambda/turn
SWEEP ?= ./lambda/sweep
DEADLETTER ?= ./lambda/deadletter

bootstrap = CGO_ENABLED=0 GOOS=$(GOOS) GOARCH=$(GOARCH) go build -tags lambda.norpc -trimpath -buildvcs=false -ldflags "-s -w" -o "$(ARTIFACTS_DIR)/bootstrap"

.PHONY: build-ApiFunction build-TurnFunction build-SweepFunction build-DeadLetterFunction local

build-ApiFunction:
	$(bootstrap) $(API)
build-TurnFunction:
	$(bootstrap) $(TURN)
build-SweepFunction:
	$(bootstrap) $(SWEEP)
build-DeadLetterFunction:
	$(bootstrap) $(DEADLETTER)

# The whole service on this machine, without an account: docs/aws.md.
local:
	go run ./internal/emulators -only ministack,sam -- go run ./internal/local
