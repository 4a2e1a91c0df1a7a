package psych
