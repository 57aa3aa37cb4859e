package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// bug is a fault that others shipped in the same place, and what keeps us from
// it: tests, or cases of tests where one name says too little.
type bug struct {
	what  string
	tests []string // folder:Test or folder:Test/case
}

// bugs are faults of gateways and engines that users reported in public.
func bugs() []bug {
	const (
		client = ".:TestClients/"
		odd    = "responses:TestOddAnswersOfEngines/"
		msgs   = "responses:TestItemsBecomeMessages/"
		form   = "gateway:TestOddStreamsComeOutWhole/"
		split  = "gateway:TestSplitterFindsWholeEvents/"
		show   = "gateway:TestRewriterShowsTheCallerWhatItAskedFor/"
		ending = "gateway:TestEveryEnding/"
		bad    = "responses:TestBadRequestsNameTheirParameter"
		fuzz   = "responses:FuzzStream"
		native = "responses:TestOddEventsOfEnginesStillTellTheAnswer/"
		order  = "responses:TestReasoningTextAndACallComeInTheOrderThatClientsKnow"
		chain  = ".:TestAnotherReplicaGoesOnWithAChain"
	)
	return []bug{
		{"characters cut between two segments became others", []string{form + "one byte at a time", form + "a character cut between two segments"}},
		{"a long line ended a stream", []string{form + "a line of 1 MiB", ending + "an event beyond the limit"}},
		{"comments did not keep an agent waiting", []string{"responses:TestASilenceIsBrokenByAnEvent"}},
		{"a comment after an id was an empty event", []string{"responses:TestASilenceIsBrokenByAnEvent", form + "comments and ids of the engine"}},
		{"an error in a field of its own was an empty message", []string{split + "a field named error", ending + "an error in the field that some engines use for it"}},
		{"a streamed legacy completion was billed and then failed", []string{"gateway:TestEngineGetsARequestMadeByUs/a legacy completion"}},
		{"usage beside choices was lost", []string{odd + "usage on a chunk with choices, without details", form + "usage on a chunk with choices"}},
		{"usage that was asked for never came", []string{form + "usage that was asked for"}},
		{"usage came unasked, or twice", []string{show + "the closing usage chunk is dropped", show + "asked for usage, exactly one chunk has it"}},
		{"a chunk without choices ended the process", []string{odd + "a chunk without choices is no fault", show + "a chunk without choices is no trouble"}},
		{"who left before the count paid nothing", []string{ending + "a caller that leaves in mid-stream", ending + "a caller that leaves just before the end marker gets a whole receipt"}},
		{"who left before the first token paid for all", []string{ending + "a caller that leaves before the first token is charged nothing", "gateway:TestEngineIsCancelledWhenTheCallerLeaves"}},
		{"null details of usage were a fault", []string{odd + "usage on a chunk with choices, without details"}},
		{"who left after the last item left a response in progress", []string{"responses:TestHowAResponseIsKeptThatHasNoGoodEnd/the caller left after the last token"}},
		{"several calls in one chunk ended the stream", []string{odd + "two calls in one chunk are two items", odd + "one call where the caller wants no more"}},
		{"interleaved calls were mixed up", []string{odd + "interleaved pieces go to their own call"}},
		{"two pieces of one call in one chunk broke its JSON", []string{odd + "two pieces of one call in one chunk are joined", "gateway:TestToolCallsInOneChunkAreSetApart"}},
		{"calls under one index were merged", []string{"gateway:TestToolCallsKeepOneIndexEach/a new id and name under an old number is a new call", odd + "a call id that is taken is replaced"}},
		{"log probabilities hid the end", []string{odd + "log probabilities are kept with the text"}},
		{"text came before its item", []string{order, client + "streamed text"}},
		{"an index grew over items", []string{order, fuzz, native + "indexes of parts that grow"}},
		{"items shared an index, and the end named others", []string{order, fuzz, native + "one index for all", native + "ids that change"}},
		{"an index of 0 was left out", []string{order, "responses:TestTheNeutralDescriptionIsAtHand"}},
		{"a text never ended", []string{order, fuzz}},
		{"the last event lacked the response", []string{order, fuzz}},
		{"a last event without output lost the turn", []string{"responses:TestAnEndWithoutOutputLosesNothingThatWasStreamed", ".:TestAnEnginesOwnResponsesAreOurs", ".:TestClientsOfAnEnginesOwnResponses"}},
		{"a chain lost its tools' calls and outputs", []string{"responses:TestALaterTurnKnowsWhatAToolSaid"}},
		{"a turn of a tool's output alone was refused", []string{"responses:TestALaterTurnKnowsWhatAToolSaid", ".:TestOpenResponsesCompliance"}},
		{"what a request goes on from was ignored", []string{chain, "responses:TestAChainShowsTheEngineAllEarlierTurns"}},
		{"another's response could be gone on from", []string{"responses:TestAnothersResponseIsNoResponse", "responses:TestForeignAndAbsentResponsesLookAlike"}},
		{"a chain lived in one engine's memory", []string{chain}},
		{"a caller's own id could not be asked after", []string{"responses:TestNamesOfResponsesAreOurs"}},
		{"shared caches told others' prompts", []string{"gateway:TestCacheSaltSeparatesTenantsAndModels", "gateway:TestAProbeTellsACacheThatKeepsSaltsApart"}},
		{"a stream could not be taken up again", []string{".:TestAnotherReplicaResumesAndCancels"}},
		{"a run was lost with the caller, or came back from its end", []string{".:TestABackgroundResponseIsQueuedAtOnceAndMade", ".:TestARunOutlivesItsReplica"}},
		{"an item that was never kept was a riddle", []string{"responses:TestAnItemThatIsNotKeptIsNamed", msgs + "sealed reasoning is opened; a foreign seal is dropped, and a shell too"}},
		{"a developer was dropped without a word", []string{msgs + "systems and developers are one first message", "api/inference:TestADeveloperStaysOneWhereTheModelKnowsThem"}},
		{"items without a type were refused", []string{"responses:TestItemsComeBackWithWhatClientsRelyOn"}},
		{"odd input was a fault of the server", []string{bad, ".:TestResponseStreamsEndOnce"}},
		{"tools that agents send unasked were refused", []string{odd + "a namespace comes back apart from the name", client + "tools in namespaces"}},
		{"the image of a tool's output was dropped", []string{msgs + "the image of a tool's output is shown as the user's"}},
		{"a turn of calls alone was refused", []string{msgs + "a turn of calls alone says null", "api/inference:TestMessages"}},
		{"an empty turn broke the order of roles", []string{msgs + "an empty turn of the assistant is kept"}},
		{"an error with status 200 was an empty token", []string{ending + "an error as the first event, then an answer elsewhere", ending + "an error after some tokens", client + "an engine that reports an error"}},
		{"a full context could not be told from other faults", []string{"responses:TestAFaultOfTheContextIsTheInputs", "gateway:TestRefusalsOfTheEngineReachTheCallerCleaned/vLLM's full context"}},
		{"compressed requests were read as JSON", []string{"api:TestEveryCodingGivesTheSameBody", "api:TestABombNeverHasRoomBeyondTheLimit"}},
		{"one turn became several messages", []string{msgs + "one turn of the assistant is one message"}},
		{"reasoning under a new name was lost", []string{odd + "reasoning under both names counts once"}},
		{"several choices were merged", []string{show + "indexes of several choices stay", "responses:TestAKeptStreamIsTheDocumentThatItWouldHaveBeen"}},
		{"log probabilities had another form", []string{"api/inference:TestEachParameterMeetsItsFate", odd + "log probabilities are kept with the text"}},
	}
}

// A fault that others had is a test here, and the list names tests that exist.
func TestTheBugsOfOthersAreTests(t *testing.T) {
	t.Parallel()
	allTested(t, bugs())
}

// allTested demands that the tests are there that the list names.
func allTested(t *testing.T, list []bug) {
	t.Helper()
	sources := map[string]string{}
	for _, b := range list {
		for _, name := range b.tests {
			folder, test, _ := strings.Cut(name, ":")
			test, one, _ := strings.Cut(test, "/")
			if sources[folder] == "" {
				sources[folder] = testSources(t, folder)
			}
			found := regexp.MustCompile(`func ` + test + `\(`).MatchString(sources[folder])
			if !found || one != "" && !strings.Contains(sources[folder], `"`+one+`"`) {
				t.Errorf("%s: there is no test %s", b.what, name)
			}
		}
		if len(b.tests) == 0 {
			t.Errorf("%s: no test", b.what)
		}
	}
}

func testSources(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		if base := filepath.Base(file); (base == "bugs_test.go" || base == "rules_test.go") && folder == "." {
			continue // they would find themselves
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
