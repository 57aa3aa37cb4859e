package main

import "testing"

// rules are what callers of stored responses rely on, and the tests that hold us
// to it. docs/responses.md and docs/api.md tell callers of them.
func rules() []bug {
	const (
		from    = "responses:TestFromWhichResponsesOneMayGoOn/"
		bad     = "responses:TestBadRequestsNameTheirParameter"
		absent  = "responses:TestExpiredAndDeletedResponsesAreAbsent"
		alone   = "responses:TestALaterTurnInheritsItemsAlone"
		msgs    = "responses:TestItemsBecomeMessages/"
		chain   = ".:TestAnotherReplicaGoesOnWithAChain"
		ending  = "responses:TestHowAResponseIsKeptThatHasNoGoodEnd/"
		talk    = "responses:TestWhatAConversationRemembersOfAResponse"
		resume  = ".:TestAnotherReplicaResumesAndCancels"
		ordered = ".:TestABackgroundResponseIsQueuedAtOnceAndMade"
		stops   = ".:TestTheModelServerStopsWithinASecondOfAnEnd/"
		lost    = ".:TestARunWhoseRightsWereLostBeforeItsTurnEnds/"
	)
	return []bug{
		{"a chain brings the items of all earlier turns, in their order", []string{"responses:TestAChainShowsTheEngineAllEarlierTurns", "responses:TestAChainOfTwoHundredTurnsStoresTwoHundredTurns", chain}},
		{"a chain brings items alone: no instructions, tools, sampling, metadata or model", []string{alone}},
		{"systems and developers of the input are items: they come along", []string{alone}},
		{"a tool's output may come alone, without the tools", []string{"responses:TestALaterTurnKnowsWhatAToolSaid"}},
		{"reasoning of earlier turns is shown where it is asked for", []string{msgs + "reasoning of earlier turns is not shown", msgs + "unless it was asked for"}},
		{"the prefix of a chain is the same bytes from turn to turn", []string{"responses:TestALaterTurnBeginsWithTheBytesOfTheEarlierOne", chain}},
		{"a chain or a conversation, not both", []string{bad}},
		{"a conversation grows by what completed or is incomplete, and by nothing else", []string{talk, ".:TestAConversationRemembersAcrossReplicas"}},
		{"turns of a conversation that end at once don't mix", []string{"responses:TestTurnsOfOneConversationDoNotMix"}},
		{"a conversation doesn't expire", []string{"responses:TestAnItemLivesUntilItsLastReferrerExpires"}},
		{"a conversation needs its items stored", []string{bad}},
		{"what is not stored can't be gone on from", []string{"responses:TestNobodyGoesOnFromWhatIsNotKept", "responses:TestWhatIsNotToBeStoredIsNot"}},
		{"a background response needs to be stored", []string{bad}},
		{"nobody goes on from what still runs", []string{from + "queued", from + "in progress"}},
		{"what failed, was cancelled or is incomplete can be gone on from", []string{from + "failed", from + "cancelled", from + "incomplete"}},
		{"half of a call is left out of a later turn", []string{from + "with half of a call", msgs + "a call that was cut off is shown if it was run all the same"}},
		{"deleted, expired, foreign and absent responses look alike", []string{absent, "responses:TestForeignAndAbsentResponsesLookAlike", "responses:TestAnothersResponseIsNoResponse"}},
		{"children of a deleted response know what was said", []string{absent, chain}},
		{"an item goes with its last referrer", []string{"responses:TestAnItemLivesUntilItsLastReferrerExpires"}},
		{"input items are the whole context, by pages, the newest first", []string{"responses:TestAListIsPagedFromTheNewest", chain}},
		{"only a background response can be cancelled", []string{".:TestOnlyABackgroundResponseCanBeCancelled", "responses:TestNobodyCancelsAnothersResponse"}},
		{"cancelled once is cancelled for good, and again is no fault", []string{resume, "responses:TestCancelledNeverBecomesCompleted", ordered}},
		{"a cancellation stops the model server", []string{stops + "a run is cancelled at another replica", stops + "a run is deleted at another replica"}},
		{"a background response is stored before anybody hears of it", []string{"responses:TestAResponseAndItsJobAreOrderedTogetherOrNotAtAll", ordered}},
		{"who leaves a background stream ends nothing", []string{resume}},
		{"a stream is taken up after any event, the first included, and followed to its end", []string{resume, ".:TestFourReadersFollowAStreamUntilItIsDeleted", "responses:TestAReaderGetsOnlyTheEventsThatItLacks"}},
		{"only what was made as a stream can be streamed again", []string{ordered}},
		{"a stream whose events are gone is the finished response, or a clear fault", []string{".:TestAStreamWhoseEventsHaveExpiredIsTheFinishedResponse", ".:TestAStreamWhoseEventsAreLostHalfwayHasNoHole", ".:TestARunOutlivesRedis", "responses:TestAReplayOfAFinishedResponseIsAStreamThatAStrictReaderTakes"}},
		{"a run outlives its replica: begun again once, unless it was shown", []string{".:TestARunOutlivesItsReplica", ".:TestAReplicaThatStopsGivesItsRunsBack", ".:TestAStreamIsFailedWhoseReplicaDiedAfterItsFirstToken", "responses:TestARunWhoseRunnerIsSilentIsTakenFromIt"}},
		{"a run keeps to its key's rights", []string{lost + "the key was revoked", lost + "the key lost the scope", lost + "the model is gone", ".:TestARunThatLosesARightEndsAtItsNextRenewal", ".:TestARevokedKeyTakesItsRunsAndReadersAlong"}},
		{"a run waits behind all that somebody waits for", []string{".:TestNoRunInTheBackgroundGoesBeforeWhoWaits", ".:TestAFloodInTheBackgroundDelaysNobody", ".:TestARunThatWasEvictedIsMadeLater"}},
		{"who leaves a stream stops the model server, and keeps and pays for what was made", []string{stops + "a caller leaves a stream", ending + "the caller left", "gateway:TestEveryEnding/a caller that leaves in mid-stream"}},
		{"who leaves after the last token has a whole answer", []string{ending + "the caller left after the last token"}},
		{"a stream ends with what is stored", []string{ending + "the key was revoked", ending + "the engine died", ending + "the key of a run was revoked"}},
	}
}

func TestTheRulesOfStoredResponsesAreTests(t *testing.T) {
	t.Parallel()
	allTested(t, rules())
}
