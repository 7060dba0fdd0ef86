"""Which documents a run leaves out, decided before they are tokenized: by length, language, evaluation texts and duplicates.

Words and shingles are datatrove's, so that a threshold or a parameter that was tuned there selects the same documents here.
"""
