package main

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/psych-go/psych-go/internal/emulators/endpoint"
)

// A spec is how an emulator, or a program that tests start themselves, is
// installed and started.
type spec struct {
	name, version string
	env           []string                                            // variables that its endpoint, or path, is given to the command in
	pip           []string                                            // what a virtual environment of its own holds
	npm           []string                                            // or a node_modules
	gobin         string                                              // or a program of Go, as PACKAGE@VERSION
	file          string                                              // of a program that tests start themselves: its path in the installation
	command       func(dir string, port int) (args, environ []string) // of an emulator; ends with its standard input
}

// specs are all, emulators at the versions that the table of exceptions speaks of.
var specs = []spec{
	{
		name: "moto", version: "5.2.5",
		env:     []string{endpoint.DynamoPrefix + "MOTO", endpoint.S3Prefix + "MOTO", endpoint.SSMPrefix + "MOTO"},
		pip:     []string{"moto[server]==5.2.5"},
		command: func(dir string, port int) ([]string, []string) { return python(dir, motoServer, port), credentials },
	},
	{
		name: "dynalite", version: "4.0.0",
		env: []string{endpoint.DynamoPrefix + "DYNALITE"},
		npm: []string{"dynalite@4.0.0"},
		command: func(dir string, port int) ([]string, []string) {
			return []string{"node", "-e", dynaliteServer, filepath.Join(dir, "node_modules", "dynalite"), strconv.Itoa(port)}, nil
		},
	},
	{
		name: "ministack", version: "1.5.33",
		env: []string{endpoint.DynamoPrefix + "MINISTACK", endpoint.S3Prefix + "MINISTACK", endpoint.SQSPrefix + "MINISTACK", endpoint.SSMPrefix + "MINISTACK"},
		pip: []string{"ministack==1.5.33", "aws-sam-translator==1.115.0", "cryptography==50.0.2"},
		command: func(dir string, port int) ([]string, []string) {
			return python(dir, ministackServer, port), append([]string{
				"BIND_HOST=127.0.0.1",
				fmt.Sprintf("GATEWAY_PORT=%d", port),
				// What it runs inherits this: without an endpoint it would call the real service.
				fmt.Sprintf("AWS_ENDPOINT_URL=http://127.0.0.1:%d", port),
				"IOT_MTLS_ENABLED=0", // else it opens a port to everyone
			}, credentials...)
		},
	},
	{
		name: "aws-lambda-rie", version: "bef5c4ba774d",
		env:   []string{endpoint.RIE},
		gobin: "github.com/aws/aws-lambda-runtime-interface-emulator/cmd/aws-lambda-rie@v0.0.0-20261030222936-bef5c4ba774d",
		file:  "aws-lambda-rie",
	},
	{
		name: "sam", version: "1.170.0", // and cfn-lint, beside it
		env:  []string{endpoint.SAMPath},
		pip:  []string{"aws-sam-cli==1.170.0", "cfn-lint==1.58.0"},
		file: filepath.Join("bin", "sam"),
	},
	// The reference servers of MCP.
	{
		name: "mcp-everything", version: "2026.8.31",
		env:  []string{endpoint.MCPPrefix + "EVERYTHING"},
		npm:  []string{"@modelcontextprotocol/server-everything@2026.8.31", "@modelcontextprotocol/sdk@1.32.2"},
		file: "node_modules/@modelcontextprotocol/server-everything/dist/index.js",
	},
	{
		name: "mcp-filesystem", version: "2026.8.31",
		env:  []string{endpoint.MCPPrefix + "FILESYSTEM"},
		npm:  []string{"@modelcontextprotocol/server-filesystem@2026.8.31", "@modelcontextprotocol/sdk@1.32.2"},
		file: "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js",
	},
}

var credentials = []string{"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_DEFAULT_REGION=us-east-1", "AWS_REGION=us-east-1"}

func python(dir, code string, port int) []string {
	return []string{filepath.Join(dir, "bin", "python"), "-c", untilEOF + code, strconv.Itoa(port)}
}

// Each server ends with its standard input, so that none outlives a program
// that was killed.
const untilEOF = `
import os, sys, threading
def until_eof():
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)
threading.Thread(target=until_eof, daemon=True).start()
`

// With threads, moto lets several of concurrent conditional writes succeed.
const motoServer = `
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
`

const ministackServer = `
from ministack.app import main
sys.argv = ["ministack"]
sys.exit(main())
`

const dynaliteServer = `
const [path, port] = process.argv.slice(1)
require(path)({createTableMs: 0, deleteTableMs: 0, updateTableMs: 0}).listen(Number(port), '127.0.0.1')
process.stdin.on('end', () => process.exit(0)).resume()
`
