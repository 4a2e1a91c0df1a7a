// Package script is a [psych.Model] that plays a script instead of calling a
// provider: for tests, examples and trials.
//
// A script is YAML or JSON, a list of steps:
//
//	steps:
//	  - text: Let me look.
//	    calls:
//	      - name: read_file
//	        arguments: {path: notes.txt}
//	  - calls:
//	      - name: read_file
//	        arguments: {path: notes.txt, offset: '${"next_offset":(\d+)}'}
//	    repeat: {until: '"truncated":false'}
//	  - {fail: 429, times: 2}
//	  - text: Done.
//	    require: ['the last line']
//	    forbid: [password]
//
// Which step is played is a function of the request alone: the number of
// assistant messages in it, with loops unrolled. So Runs that were killed and
// resumed, or that share one Model, play right, and a step that has been played
// is not played again. Loops and substitutions look at what the request shows
// of a result, which may be a preview.
//
// The Model also stands in for a provider's prompt cache: it reports as cached
// what an earlier request of this process began with.
package script
