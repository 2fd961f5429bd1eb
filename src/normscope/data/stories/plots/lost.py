"""Lost and found: what is found is what was lost, and it lies where somebody saw it."""

RULES = {
    "lost and found": [
        "<took along>[ <air>|][| <sight>] <loss> <search>\n<arrives> <what is wrong> <seen>\n"
        "<found> <reward>[ <home>|]",
    ],
    "took along": [
        "<when>, {hero.he} took {hero.his} {look=look} {thing=thing} to the {place=place}.",
        "<when>, {hero.he} <walked> to the {place=place} with {hero.his} {look=look} {thing=thing}.",
        "<when>, {hero.he} was {place=place as at} with {hero.his} {look=look} {thing=thing}.",
    ],
    "loss": [
        "But [soon|then|suddenly|a little later|when {hero.he} turned around|one hour later] the {thing} was <gone>.",
        "<Hero> put the {thing} down to <pause>, and [then|suddenly|a moment later] it was <gone>.",
        "When it was time to [go home|eat|go|leave|sleep], {hero.he} could not find the {thing}.",
        "On the way [back|home] {hero.he} [felt|knew|noticed] that the {thing} was [missing|gone|lost].",
        "A [gust of wind|cloud of dust|big dog|flock of crows] came, and the {thing} was <gone>.",
    ],
    "gone": ["gone", "lost", "no longer there", "missing", "nowhere to be seen"],
    "pause": [
        *("rest", "drink", "tie {hero.his} shoes", "pick flowers", "chase a butterfly", "sneeze", "eat <snack>"),
        *("stroke a cat", "wash {hero.his} hands"),
    ],
    "search": [
        "<So hero> [looked|searched] [high and low|here and there|left and right|everywhere|twice|for hours] and "
        "<despaired>.",
        "<So hero> [called for help|ran up and down|turned over every stone|asked the birds|climbed a tree], "
        "but [nothing helped|in vain|found nothing|that was no use].",
        '"Where is my {look} {thing}?" {hero.he} <asked><sadly>.',
        '"[Oh no|Oh dear|Help]! My {look} {thing}!" {hero.he} <sobbed><sadly>.',
    ],
    "despaired": [
        *("found nothing", "began to cry", "felt very sad", "almost gave up", "sat down on the ground"),
        *("shook {hero.his} head", "kicked a stone", "hid {hero.his} face", "bit {hero.his} lip"),
    ],
    "what is wrong": [
        '"<question>?" it <asked>. "I <cannot find> my {look} {thing}," <sobbed> {hero}<sadly>.',
        '"<question>?" it <asked><friendly>. <So hero> told it [about|all about|the story of] the {look} {thing}.',
        '"<have you seen> {look.a} {thing}?" <asked> {hero}<sadly>.',
    ],
    "question": [
        *("What is wrong", "Why are you so sad", "Can I help you", "What are you looking for"),
        *("Did you lose something", "What has happened", "Are you crying"),
    ],
    "cannot find": ["lost", "cannot find", "miss", "want to find", "am looking for", "need"],
    "have you seen": ["Have you seen", "Did you see", "Please, did you find", "Has anybody seen", "Do you know of"],
    "seen": [
        '"<comfort> I saw it {spot=place.spots}," <replied> <friend><gladly>.',
        "<Friend> [thought for a while|scratched its head|closed its eyes|looked up|nodded|hummed]. "
        '"[Look|Try|Maybe it is|It could be] {spot=place.spots}," it <said>.',
        '"<comfort> Something [{look}|strange|like that|big] is lying {spot=place.spots}," <replied> <friend>.',
        '"<comfort> Let us look {spot=place.spots}," <replied> <friend><gladly>.',
    ],
    "comfort": ["Yes!", "Oh!", "Come with me!", "Do not cry!", "Cheer up!", "Be brave!", "I know!", "Wait!", "Listen!"],
    "found": [
        "<So hero> <ran> there<quickly>, and {spot} lay the {look} {thing}<unharmed>.",
        "They <ran> there together. The {look} {thing} [was|lay] {spot}<unharmed>.",
        "And [really|truly|indeed|sure enough], there was the {look} {thing}, {spot}<unharmed>.",
    ],
    "unharmed": [
        *("", ", safe and sound", ", only a little wet", ", covered with dust", ", as good as new"),
        *(", with a ladybird on it", ", cold but whole", ", waiting"),
    ],
    "reward": [
        '"<thanks>, {friend}!" <cried> {hero}<gladly>.',
        '"<thanks>!" <cried> {hero} and gave <friend> [some|a bowl of|plenty of] {food=friend.foods}.',
        "<Hero> [hugged|thanked|kissed|tickled] <friend> and {thing.used} the {thing} "
        "[until dark|at once|twice|again].",
        "From [then|that day] on <friend> could {thing.use} the {look} {thing}, "
        "too[, whenever it wanted|, every Sunday|].",
    ],
}
